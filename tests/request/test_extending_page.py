"""docs/extending.md works as written: its package is found, its data are read, its family runs."""

import json
import re
import sys

import pytest
import torch

import bench
from bench.cli.main import dispatch
from bench.request import plugins
from methods.base import SequenceInfo
from methods.vanilla import Vanilla
from tests import made
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"```(?:python|yaml|toml|json)\n(.*?)```", re.DOTALL)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The page's files, installed by its pyproject.toml, and its data in tmp_path."""
    model = made.checkpoint(tmp_path / "model")
    blocks = BLOCK.findall(PAGE)
    files = {block.splitlines()[0][2:]: block for block in blocks if block.startswith("# ")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("/path/to/checkpoint", str(model)))
    (tmp_path / "lab_bench" / "__init__.py").touch()
    (value,) = re.findall(r'^lab = "(.*)"$', files["pyproject.toml"], re.MULTILINE)
    info = tmp_path / "lab_bench-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-bench\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[bench.conf]\nlab = {value}\n")
    record = next(json.loads(block) for block in blocks if block.startswith("{"))
    (tmp_path / "cases").mkdir()
    lines = [json.dumps({**record, "case": f"a-{i}"}) for i in range(3)]
    (tmp_path / "cases" / "validation.jsonl").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.conf_dirs.cache_clear()
    yield tmp_path
    plugins.conf_dirs.cache_clear()
    for name in [name for name in sys.modules if name.startswith("lab_bench")]:
        del sys.modules[name]


def test_the_task_reads_its_data_and_scores_by_its_own_metric(package, capsys):
    assert dispatch(["ls", "tasks"]) == 0
    assert "\n  cases " in capsys.readouterr().out
    words = ("task=cases", f"data.dir={package}", f"model={package / 'model'}", "n=3")
    cell = bench.compose(*words)
    rows = cell.rows().rows
    assert [row.id for row in rows] == ["a-0", "a-1", "a-2"]
    assert rows[0].references == ("the north door",)
    answers, references = ["It was the north door."], [rows[0].references]
    assert 0 < cell.build_task().score(answers, references)["value"] < 100
    lenient = bench.compose(*words, "task.lenient=true")
    assert lenient.build_task().score(answers, references)["value"] == 100
    assert lenient.key != cell.key


def test_the_family_loads_and_runs_a_method(package):
    family = plugins.load(plugins.conf("model", "plain_t5")["family"]).tiny(Vanilla())
    ids = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(0))
    hidden = family.encode(ids, SequenceInfo())
    assert hidden.shape[:2] == (1, 12) and family.calls > 0
