"""Who may import whom, and what stays out of a quick command."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.conftest import ROOT

ROOMS = {"bench", "methods", "tasks", "reports"}
ALLOWED = {
    "methods": {"methods"},
    "tasks": {"tasks"},
    "bench": {"bench", "methods", "tasks"},
    "reports": {"reports", "bench"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_rooms_import_only_through_their_doors(room):
    for path in (ROOT / room).rglob("*.py"):
        seen = {name.split(".")[0] for name in imported(path)} & ROOMS
        assert seen <= ALLOWED[room], f"{path}: {seen - ALLOWED[room]}"


def test_methods_do_not_import_each_other():
    """A method is a file that a YAML names; other files are parts, which methods may share."""
    targets = [
        line.split()[1].split(":")[0].split(".")[1]
        for path in (ROOT / "conf" / "method").glob("*.yaml")
        for line in path.read_text().splitlines()
        if line.startswith("target: methods.")
    ]
    assert {"bigbird", "fourier", "iceformer", "vanilla", "vcc"} <= set(targets)
    for name in targets:
        path = ROOT / "methods" / f"{name}.py"
        tree = ast.parse(path.read_text())
        modules = {module.removeprefix("methods.").split(".")[0] for module in imported(path)}
        modules |= {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "methods"
            for alias in node.names
        }
        assert not modules & (set(targets) - {name, "vanilla"}), path


def test_the_harness_names_no_method_and_no_task():
    names = {p.stem for p in (ROOT / "conf" / "task").glob("*.yaml")}
    names |= {p.stem for p in (ROOT / "conf" / "method").glob("*.yaml")} - {"vanilla"}
    for path in (ROOT / "bench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom | ast.Import):
                for name in imported(path):
                    last = name.rsplit(".", 1)[-1]
                    assert last not in names, f"{path} imports {name}"


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["ls"],
        ["run", "--help"],
        ["run", "method=vxx"],
        ["plan", "length=256,512"],
        ["leaderboard", "--results", "nowhere"],
    ],
)
def test_quick_commands_load_no_torch(command):
    program = (
        "import sys\nfrom bench.cli import main\n"
        f"try: main({command!r})\nexcept SystemExit: pass\n"
        "print({'torch', 'transformers', 'pandas'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.strip().splitlines()[-1] == "set()", done.stderr
