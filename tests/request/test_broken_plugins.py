"""A broken plugin is named in one line with its file, and breaks nothing else."""

import itertools
import sys
from pathlib import Path

import pytest

import bench
from bench.cli.main import dispatch
from bench.conformance.__main__ import requested
from bench.errors import RequestError
from bench.request import plugins
from bench.rows import derived_columns
from bench.status import Status
from tests import made

METHOD = """
from dataclasses import dataclass
from methods.base import Method
@dataclass(frozen=True)
class Broken(Method):
    window: int = 1
"""
TASK = """
from dataclasses import dataclass
from tasks.base import Row
from tasks.loading.reader import Reader
@dataclass(frozen=True)
class Broken(Reader):
    def parse(self, record, where, split, at):
        return Row(record["id"], "where", record["d"], ("here",))
    def make(self, split, index, length, seed):
        return [{"d": "it is here"}]
"""
METHOD_YAML = "name: broken\ntarget: MODULE:Broken\n"
TASK_YAML = METHOD_YAML + (
    "benchmark: broken\nversion: 1\nmetric: f1\nmax_new_tokens: 8\nlength: 256\n"
)
MODEL_YAML = "name: broken\nfamily: MODULE:Broken\npath: nowhere\nweights: embedded\n"
_numbers = itertools.count()


@pytest.fixture
def plugin(tmp_path, conf_folder, monkeypatch):
    """Writes a plugin's YAML and module, and returns the folder. MODULE stands for the module."""

    def write(group: str, yaml: str | bytes, code: str | bytes = "") -> Path:
        # Modules stay imported, so each has a different name.
        module = f"broken_plugin_{next(_numbers)}"
        path = conf_folder / group / "broken.yaml"
        path.parent.mkdir(parents=True)
        for file, text in ((path, yaml), (tmp_path / f"{module}.py", code)):
            content = text if isinstance(text, bytes) else text.encode()
            file.write_bytes(content.replace(b"MODULE", module.encode()))
        return tmp_path

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for name in [name for name in sys.modules if name.startswith("broken_plugin")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("yaml", "code", "expected"),
    [
        ("name: [broken\ntarget: x\n", METHOD, "broken.yaml:2: not YAML"),
        ("name: broken\n", METHOD, "broken.yaml: no value for 'target'"),
        ("name: other\ntarget: MODULE:Broken\n", METHOD, "broken.yaml:1: name: other"),
        (METHOD_YAML + "name: broken\n", METHOD, "broken.yaml:3: not YAML: found duplicate key"),
        (METHOD_YAML + f"k: {'1' * 5000}\n", METHOD, "broken.yaml: not YAML: Exceeds the limit"),
        ("name: broken\ntarget: 3\n", METHOD, "broken.yaml:2: target: '3' is not of the form"),
        ("name: broken\ntarget: no_such:A\n", METHOD, "broken.yaml:2: target: no module 'no_such'"),
        ("name: broken\ntarget: MODULE:Other\n", METHOD, "broken.yaml:2: target: no 'Other' in"),
        (METHOD_YAML, "x = (\n", ".py:1)"),
        (METHOD_YAML, "", "which defines nothing"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(plugin, refused, yaml, code, expected):
    folder = plugin("method", yaml, code)
    line = refused("plan", "method=broken", "length=512", f"results={folder}")
    assert expected in line and "broken" in line
    if "duplicate" not in expected:  # PyYAML takes the last one
        assert refused("check", "method=broken") == line
        assert refused("run", "method=broken") == line


def test_one_broken_file_leaves_the_list_of_the_others(plugin, capsys):
    folder = plugin("method", METHOD_YAML, "x = (\n")
    (folder / "conf/method/latin.yaml").write_bytes("# \xfc\nname: latin\n".encode("latin-1"))
    (folder / "conf/method/folder.yaml").mkdir()
    assert dispatch(["ls", "methods"]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"vanilla", "vcc"} <= set(listed)
    for name in ("broken", "latin", "folder"):
        assert "can't be used: " in listed[name] and name in listed[name].partition(": ")[2]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (METHOD + "raise SystemExit(7)\n", "SystemExit: 7 ("),
        ("class Broken:\n    pass\n", "is not a dataclass on methods.base.Method"),
        (METHOD.replace("int = 1", "int"), "broken: no value for 'window'"),
    ],
)
def test_a_method_that_cannot_be_made_is_named(plugin, refused, code, expected):
    plugin("method", METHOD_YAML, code)
    line = refused("check", "method=broken")
    assert expected in line
    assert "(" not in expected or "broken_plugin" in line.rpartition("(")[2]
    with pytest.raises(RequestError, match="broken"):
        requested(["method=broken"])


@pytest.mark.parametrize(
    ("yaml", "code", "expected"),
    [
        (TASK_YAML.replace("benchmark: broken\n", ""), TASK, "no value for 'benchmark'"),
        (TASK_YAML.replace("f1", "f2"), TASK, "task broken: unknown metric 'f2'. Known: "),
        (TASK_YAML + "colour: red\n", TASK, "unknown parameter of broken 'colour'"),
        (TASK_YAML, "class Broken:\n    pass\n", "is not a dataclass on tasks.base.Task"),
        (TASK_YAML, TASK + "    def parse(self, *_): return {}['a']\n", "KeyError: 'a' ("),
        (TASK_YAML, TASK + "    def load(self, *_): return None\n", "load gave NoneType"),
    ],
)
def test_a_task_that_cannot_be_used_is_named(plugin, refused, tmp_path, yaml, code, expected):
    plugin("task", yaml, code)
    model = made.checkpoint(tmp_path / "model")
    line = refused("run", "task=broken", f"model={model}", "length=256", f"results={tmp_path}")
    assert expected in line and ("broken" in line or "task.metric" in line)


def test_an_error_while_it_runs_is_one_line_with_file_and_line(
    plugin, tmp_path, monkeypatch, capsys
):
    raising = "    def attend(self, *given):\n        raise RuntimeError('no\\nwindow')\n"
    monkeypatch.setenv("PYTHONPATH", str(plugin("method", METHOD_YAML, METHOD + raising)))
    words = ("method=broken", "measure=quality", "length=256", "n=1", f"results={tmp_path}")
    assert dispatch(["run", *words]) == 1
    assert "RuntimeError: no (broken_plugin_" in (out := capsys.readouterr().out)
    assert ".py:8)" in out


def test_a_plan_refuses_the_cells_of_a_broken_task_alone(plugin, tmp_path, capsys):
    plugin("task", TASK_YAML.replace("f1", "f2"), TASK)
    model = made.checkpoint(tmp_path / "model")
    words = ("task=broken,qmsum", f"model={model}", "length=512", f"results={tmp_path}")
    assert dispatch(["plan", *words]) == 2
    states = [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert states == [["refused", "task=broken"], ["to do", "task=qmsum"]]


@pytest.mark.parametrize(
    ("group", "yaml", "words"),
    [
        ("model", MODEL_YAML, ("plan", "model=broken")),
        ("recipe", "", ("train", "recipe=broken")),
        ("launcher", "- a\n", ("plan", "launcher=broken")),
    ],
)
def test_every_other_yaml_is_named(plugin, refused, tmp_path, group, yaml, words):
    plugin(group, yaml)
    assert f"{group}/broken.yaml" in refused(*words, f"results={tmp_path}")


@pytest.mark.parametrize(
    ("files", "value", "expected"),
    [
        ([], "no_such:conf", "no package 'no_such'"),
        (["entry_package/__init__.py"], "entry_package:cnf", "no folder "),
        (["entry_package/conf/x"], "entry_package:conf", "has no folder method/"),
    ],
)
def test_a_wrong_entry_point_is_named(tmp_path, monkeypatch, capsys, files, value, expected):
    for name, text in [
        *((file, "1 / 0") for file in files),  # nothing is imported to find a folder
        ("x-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1.0\n"),
        ("x-1.0.dist-info/entry_points.txt", f"[bench.conf]\nmine = {value}\n"),
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.conf_dirs.cache_clear()
    assert dispatch(["ls", "methods"]) == 0
    shown = capsys.readouterr()
    assert "vanilla" in shown.out
    assert f"entry point bench.conf: mine = {value}" in shown.err and expected in shown.err
    assert dispatch(["plan", "method=mine"]) == 2
    assert expected in capsys.readouterr().err
    plugins.conf_dirs.cache_clear()


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("    def score(self, p, r): return 1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("    def score(self, p, r): return {'value': float('nan')}\n", "expected figures"),
        ("    def score_each(self, p, r): return [1.0]\n", "expected a number for each of 3"),
        ("    def constants(self, rows): return 1 / 0\n", "ZeroDivisionError: division by zero ("),
    ],
)  # fmt: skip
def test_a_metric_that_fails_is_a_row_error(plugin, tmp_path, metric, expected):
    plugin("task", TASK_YAML, TASK + metric)
    model = made.checkpoint(tmp_path / "model")
    cell = bench.compose("task=broken", "method=vanilla", f"model={model}", "length=256", "n=3")
    made.predict(tmp_path, cell, [True, True, False])
    measured = {"status": Status.OK, "tokens_in_mean": 3.0, "rss_peak_delta_bytes": 5}
    row = derived_columns.derive(measured, cell, tmp_path)
    assert (row["status"], row["status_stage"]) == (Status.ERROR, "score")
    assert expected in row["status_detail"] and len(row["status_detail"].splitlines()) == 1
    assert row["rss_peak_delta_bytes"] == 5
