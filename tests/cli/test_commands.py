"""The commands as a whole: their overview, one spelling of every option, other harnesses' names,
and the commands that are proposed after a run."""

import importlib.metadata
import json
from types import SimpleNamespace

import pytest

from bench.cli import run_commands
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


def test_a_run_ends_with_what_to_do_next():
    words = ["method=vcc", "task=qmsum", "length=4096", "results=my rows"]
    assert run_commands.after_row(made.full(length=4096), words) == (
        "next: bench run -m method=vanilla,vcc length=4096,8192 task=qmsum 'results=my rows'; then "
        "bench compare method=vanilla method=vcc 'results=my rows'; "
        "bench leaderboard 'results=my rows'"
    )
    assert run_commands.after_row(made.full(status="error"), []) == ""
    assert "method=NAME length=512" in run_commands.after_row(made.full(method="vanilla"), [])


def test_a_sweep_ends_with_what_to_do_next():
    def after(*methods):
        cells = [SimpleNamespace(method={"name": name}) for name in methods]
        done = [SimpleNamespace(row_id="a", cell=cell) for cell in cells]
        return run_commands.after_sweep(SimpleNamespace(cells=done, open=[]), [], [])

    both = "next: bench compare method=vanilla method=bigbird; bench leaderboard"
    assert after("vanilla", "bigbird") == both
    assert after("vanilla") == "next: bench leaderboard" and after() == ""
