"""The files around the code: version, citation, changelog, packaging, workflows."""

import re
import tomllib

import pytest
import yaml

from tests.conftest import ROOT
from tools import wheel_test

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODELS = tomllib.loads((ROOT / "tools" / "embedded" / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]


def test_the_version_is_the_same_everywhere():
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    assert MODELS["project"]["version"] == VERSION
    assert MODELS["project"]["dependencies"] == [f"longctx-bench=={VERSION}"]
    extras = PROJECT["project"]["optional-dependencies"]
    assert extras["models"] == [f"longctx-bench-models=={VERSION}"]
    headings = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", VERSION] or headings[0] == VERSION


def test_every_shipped_model_is_in_one_wheel():
    shipped = {path.name for path in (ROOT / "bench" / "models" / "embedded").iterdir()}
    wheels = [PROJECT, MODELS]
    parts = [
        [path.rpartition("/")[2] for path in one["tool"]["hatch"]["build"]["targets"]["wheel"]
         ["force-include"].values() if path.startswith("bench/models/embedded/")]
        for one in wheels
    ]  # fmt: skip
    assert sorted(parts[0] + parts[1]) == sorted(shipped) and parts[0] == ["t5", "t5-vcc"]


def test_a_distribution_with_stray_files_or_paths_of_this_machine_is_named(tmp_path):
    import zipfile

    path = tmp_path / "longctx_bench-1.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("bench/a.py", f"HERE = '{ROOT}'")
        wheel.writestr("tests/b.py", "")
        wheel.writestr("bench/c.py", "x")
    told = list(wheel_test.faults(path))
    assert len(told) == 2 and "bench/a.py contains" in told[0] and "tests/b.py" in told[1]


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=str)
def test_commands_of_workflows_are_there(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        chosen = job.get("strategy", {}).get("matrix", {}).get("include", [])
        commands = [step["run"] for step in job["steps"] if "run" in step]
        words = [word for line in commands if line.startswith("make ")
                 for word in line.split()[1:]]  # fmt: skip
        words += [one["target"] for one in chosen]
        assert commands and {word for word in words if word != '"$TARGET"'} <= targets
        assert all((ROOT / line).is_file() for line in commands if line.startswith("."))
