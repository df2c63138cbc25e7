"""Which folders may import which, and which modules a quick command must not load.

Imports are read from the source, so those inside functions and under TYPE_CHECKING count too.
"""

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("bench", "methods", "tasks", "reports", "longctx_bench", "tools", "benchmarks")
ORDER = (
    ("errors", "files", "status", "statistics", "units"),
    ("host",),
    ("request", "models", "rows"),
    ("engines",),
    ("execution",),
    ("measure", "train"),
    ("sweep", "compare"),
    ("conformance", "adapters"),
    ("terminal",),
    ("cli",),
)
"""The folders and modules of bench/, lowest first: each may import itself and what stands before
it. Folders of one line may import each other where no cycle results."""
ALLOWED = {
    "methods": {"methods"},
    "tasks": {"tasks"},
    "bench": {"bench", "methods", "tasks"},
    "reports": {"reports", "bench"},
    "longctx_bench": {"longctx_bench", "bench", "methods"},
    "tools": {"tools", "bench", "methods", "tasks"},
    "benchmarks": {"benchmarks", "bench", "methods", "tasks", "reports"},
}
ENGINES = "bench.engines."
REPORTS_READ = {"errors", "files", "status", "statistics", "rows", "request", "host", "terminal",
                "units"}  # fmt: skip
"""What reports may use of the harness: rows, numbers and words, nothing that runs a cell."""


@cache
def modules() -> dict[str, Path]:
    """Name → file of every module of the project."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


@cache
def imports(path: Path) -> frozenset[str]:
    """The project's modules that a file imports."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return frozenset(found & known.keys())


def folder(module: str) -> str:
    """The part of bench/ that a module of it belongs to."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package):
    for name, path in modules().items():
        if name.split(".")[0] == package:
            seen = {other.split(".")[0] for other in imports(path)}
            assert seen <= ALLOWED[package], f"{path}: {seen - ALLOWED[package]}"


def test_a_folder_imports_only_what_stands_below_it():
    rank = {name: i for i, names in enumerate(ORDER) for name in names}
    for name, path in modules().items():
        if name.startswith("bench.") and folder(name) != "__main__":
            for other in imports(path):
                if other.startswith("bench."):
                    assert rank[folder(other)] <= rank[folder(name)], f"{name} imports {other}"


def test_every_folder_of_the_harness_has_its_place_in_the_order():
    folders = {folder(name) for name in modules() if name.startswith("bench.")} - {"__main__"}
    assert folders == {name for names in ORDER for name in names}


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports(path) - {name} for name, path in modules().items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def test_reports_run_nothing():
    for name, path in modules().items():
        if name.startswith("reports"):
            used = {folder(other) for other in imports(path) if other.startswith("bench.")}
            assert used <= REPORTS_READ, f"{path}: {used - REPORTS_READ}"


def targets(group: str) -> dict[str, str]:
    """Name → module of every method or task of the configuration; engines are the harness's."""
    found = {}
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        for line in path.read_text().splitlines():
            if line.startswith("target: "):
                found[path.stem] = line.split()[1].strip("\"'").split(":")[0]
    return {name: module for name, module in found.items() if not module.startswith(ENGINES)}


def paper(module: str) -> str:
    """The folder of a method's paper, or its module where it has no folder."""
    return ".".join(module.split(".")[:2])


def test_methods_do_not_import_each_other():
    papers = {paper(module) for module in targets("method").values()} - {"methods.vanilla"}
    assert len(papers) >= 4
    for name, path in modules().items():
        if paper(name) in papers:
            others = {paper(other) for other in imports(path)}
            assert not others & (papers - {paper(name)}), f"{name} imports {others}"


def test_a_method_is_read_in_few_modules():
    seen, waiting = set(), {"methods.knorm"}
    while waiting:
        seen |= waiting
        waiting = set().union(*(imports(modules()[name]) for name in waiting)) - seen
    assert len(seen) <= 8, sorted(seen)


def test_the_harness_imports_no_method_and_no_task():
    named = {paper(module) for module in targets("method").values()}
    named |= set(targets("task").values())
    for name, path in modules().items():
        if name.startswith("bench."):
            used = {paper(other) for other in imports(path)} | imports(path)
            assert not used & named, f"{name} imports {used & named}"


def test_the_harness_names_no_method():
    """As a string: it knows only the baseline. Engines have algorithms with the same names."""
    names = set(targets("method")) - {"vanilla"}
    for name, path in modules().items():
        if name.startswith("bench.") and not name.startswith(ENGINES):
            tree = ast.parse(path.read_text())
            constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            assert not constants & names, f"{name} names {constants & names}"


def test_no_user_is_called_a_cheat():
    for folder in ("bench", "methods", "tasks", "reports", "conf"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".yaml", ".txt", ".j2", ".js"):
                assert "cheat" not in path.read_text().lower(), path


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["ls"],
        ["run", "--help"],
        ["run", "method=vxx"],
        ["plan", "length=256,512", "results=nowhere"],
        ["leaderboard", "--results", "nowhere"],
    ],
)
def test_quick_commands_load_no_torch(command, tmp_path):
    program = (
        "import sys\nfrom bench.cli.main import main\n"
        f"try: main({command!r})\nexcept SystemExit: pass\n"
        "print({'torch', 'transformers', 'pandas'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.strip().splitlines()[-1] == "set()", done.stderr
