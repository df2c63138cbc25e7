"""The hash of code: moving or rewording code keeps it; a different computation changes it."""

import itertools

import pytest

from bench.errors import RequestError
from bench.request.code_hash import code_sha256

FORMULA = '''"""A formula."""

from __future__ import annotations

import math


def area(radius: float) -> float:
    """Of a circle."""
    # The usual one.
    return math.pi * radius**2
'''
MAIN = "from {package}.formula import area\n\nVOLUME = 2 * area(3.0)\n"
KERNEL = '// A kernel.\nint twice(int x) {\n  return 2 * x;  /* "double" */\n}\n'
NUMBERS = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package of these files under a new name, and returns its hash."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(files: dict[str, str], target: str = "main", without: str = "") -> str:
        name = f"copied{next(NUMBERS)}"
        for path, text in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("{package}", name))
            (file.parent / "__init__.py").touch()
        (tmp_path / name / "__init__.py").touch()
        return code_sha256(f"{name}.{target}", without=without and f"{name}.{without}")

    return written


def test_a_moved_module_keeps_the_hash(package):
    moved = {"deep/er/formula.py": FORMULA, "main.py": MAIN.replace("formula", "deep.er.formula")}
    renamed = {"area.py": FORMULA, "start.py": MAIN.replace("{package}.formula", ".area")}
    first = package({"formula.py": FORMULA, "main.py": MAIN})
    assert first == package(moved) == package(renamed, target="start")


def test_words_and_layout_keep_the_hash(package):
    reworded = FORMULA.replace('"""A formula."""', "").replace("# The usual one.", "# π r².")
    reworded = reworded.replace("Of a", "Area of a").replace("radius**2", "radius ** 2")
    first = package({"formula.py": FORMULA, "main.py": MAIN})
    assert first == package({"formula.py": reworded, "main.py": MAIN})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("radius**2", "radius**3"),
        ("math.pi * radius", "math.pi + radius"),
        ("import math", "import cmath as math"),
    ],
)
def test_another_formula_changes_the_hash(package, before, after):
    first = package({"formula.py": FORMULA, "main.py": MAIN})
    assert first != package({"formula.py": FORMULA.replace(before, after), "main.py": MAIN})


def test_a_name_imported_from_another_module_changes_the_hash(package):
    both = {"formula.py": FORMULA, "other.py": FORMULA.replace("**2", "**3")}
    both["both.py"] = "import {package}.formula, {package}.other\n"
    start = "import {package}.both\n" + MAIN
    other = start.replace("{package}.formula", "{package}.other")
    assert package({**both, "main.py": start}) != package({**both, "main.py": other})


def test_kernels_count_without_their_comments(package):
    def of(kernel: str) -> str:
        return package({"native/twice.cpp": kernel, "main.py": "from {package} import native\n"})

    first = of(KERNEL)
    assert first == of(KERNEL.replace("// A kernel.", "/* Twice\n * as much */\n"))
    assert first != of(KERNEL.replace("2 * x", "3 * x"))


def test_what_is_left_out_counts_neither_itself_nor_below(package):
    def of(metric: str) -> str:
        main = "from {package}.metrics import deep\nfrom {package}.metrics.deep import text\n"
        return package({"metrics/deep/text.py": metric, "main.py": main + "A = 1\n"},
                       without="metrics")  # fmt: skip

    assert of("B = 1\n") == of("B = 2\n")


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(RequestError, match=r"no module 'methods\.nothing'"):
        code_sha256("methods.nothing:Nothing")
