"""The commands as a whole: their overview, one spelling of every option, other harnesses' names."""

import importlib.metadata
import json

import pytest

from bench.cli.main import COMMANDS, TARGETS, bench
from bench.rows.store import Store
from tests import made


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_bench_alone_prints_every_command_by_group(command, words):
    code, out, err = command(*words)
    lines = out.splitlines()
    assert code == 0 and not err and max(map(len, lines)) <= 79
    places = [lines.index(f"{group}:") for group in COMMANDS]
    assert places == sorted(places)
    assert all(f"  {name} " in out for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_every_command_has_help(command, name):
    code, out, err = command(*name.split(), "--help")
    assert code == 0 and not err and out.startswith(f"Usage: bench {name} ")
    assert max(map(len, out.splitlines())) <= 100
    found = bench.get_command(None, name)
    assert found.help and all(option in out for p in found.params for option in p.opts
                                if option.startswith("--") and not p.hidden)  # fmt: skip


def test_the_version(command):
    version = importlib.metadata.version("longctx-bench")
    assert command("--version") == (0, f"longctx-bench {version}\n", "")


def test_results_is_spelled_alike_everywhere(command, tmp_path):
    Store(tmp_path).append([made.row(row_id="aa11")])
    listed = command("results", f"results={tmp_path}")
    assert listed[0] == 0 and "aa11" in listed[1]
    assert listed == command("results", "--results", tmp_path)
    (path := tmp_path / "x.jsonl").write_text('{"id": "a", "prediction": "b"}')
    code, _, err = command("score", "qmsum", path, f"data.dir={tmp_path}")
    assert code == 2 and "scrolls/qmsum.zip" in err


def test_tables_are_json_on_request(command, tmp_path):
    Store(tmp_path).append([made.row(row_id="aa11", lat_ratio_ci_hi=float("inf"))])
    (row,) = json.loads(command("results", f"results={tmp_path}", "--json")[1])
    assert row["row_id"] == "aa11" and row["length"] == 512 and row["lat_ratio_ci_hi"] is None
    methods = json.loads(command("ls", "methods", "--json")[1])
    assert "vcc" in [method["name"] for method in methods]
    (f1,) = (m for m in json.loads(command("ls", "metrics", "--json")[1]) if m["name"] == "f1")
    assert f1 == {"name": "f1", "version": 1, "tasks": "narrativeqa qasper"}
    (qmsum,) = (t for t in json.loads(command("ls", "tasks", "--json")[1]) if t["name"] == "qmsum")
    assert qmsum["n_validation"] == 272
