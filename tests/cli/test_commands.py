"""The commands as a whole: their overview, one spelling of every option, other harnesses' names."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from bench.cli.main import COMMANDS, TARGETS, bench, dispatch
from bench.rows.store import Store
from tests import made


@pytest.fixture
def said(capsys):
    """(exit code, standard output, standard error) of a command."""

    def run(*words):
        code = dispatch(list(map(str, words)))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_bench_alone_prints_every_command_by_group(said, words):
    code, out, err = said(*words)
    lines = out.splitlines()
    assert code == 0 and not err and max(map(len, lines)) <= 79
    places = [lines.index(f"{group}:") for group in COMMANDS]
    assert places == sorted(places)
    assert all(f"  {name} " in out for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_every_command_has_help(said, name):
    code, out, err = said(*name.split(), "--help")
    assert code == 0 and not err and out.startswith(f"Usage: bench {name} ")
    assert max(map(len, out.splitlines())) <= 100
    command = bench.get_command(None, name)
    assert command.help and all(option in out for p in command.params for option in p.opts
                                if option.startswith("--") and not p.hidden)  # fmt: skip


def test_the_version(said):
    version = importlib.metadata.version("longctx-bench")
    assert said("--version") == (0, f"longctx-bench {version}\n", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--tasks", "qmsum"], "Write task=… instead. See bench run --help"),
        (["run", "limit=3"], "can't read 'limit': write n=…"),
        (["run", "--data-dir=there"], "Write data.dir=…"),
        (["results", "--resutls", "x"], "Did you mean"),
        (
            ["compare", "--format", "githb"],
            "unknown --format 'githb'. Did you mean github? Known: auto, ",
        ),
        (["vcc"], "'vcc' is no command; bench run method=vcc runs it"),
        (["pln"], "unknown command 'pln'. Did you mean plan? Known: check, "),
        (["recall", "--keys", "0"], "Invalid value for '--keys': 0 is not in the range"),
        (["new", "methd", "x"], "unknown kind 'methd'. Did you mean method? Known: method, task"),
        (["score", "qmsum"], "Missing argument 'FILE'. See bench score --help"),
    ],
)
def test_another_harness_names_are_answered_with_ours(said, words, told):
    code, _, err = said(*words)
    assert code == 2 and told in err and len(err.splitlines()) == 1


def test_results_is_spelled_alike_everywhere(said, tmp_path):
    Store(tmp_path).append([made.row(row_id="aa11")])
    listed = said("results", f"results={tmp_path}")
    assert listed[0] == 0 and "aa11" in listed[1]
    assert listed == said("results", "--results", tmp_path)
    (path := tmp_path / "x.jsonl").write_text('{"id": "a", "prediction": "b"}')
    code, _, err = said("score", "qmsum", path, f"data.dir={tmp_path}")
    assert code == 2 and "scrolls/qmsum.zip" in err


def test_scores_are_averaged_over_seeds_and_nothing_else(said, tmp_path):
    scores = {0: 40.0, 1: 44.0, 2: 48.0}
    rows = [made.row(method="luna", seed=seed, value=score) for seed, score in scores.items()]
    rows[2]["at_chance"] = True
    rows.append(made.row(method="luna", seed=3, value=None, status="error"))
    rows.append(made.row(method="luna", seed=0, value=90.0, length=1024))
    Store(tmp_path).append(rows)
    code, out, _ = said("results", "--seeds", f"results={tmp_path}", "--json")
    three, one = json.loads(out)
    assert code == 0 and three["seeds"] == "0 1 2" and three["mean"] == 44.0
    assert three["sd"] == pytest.approx(4.0) and three["seeds_at_chance"] == 1
    assert (three["lowest"], three["highest"]) == (40.0, 48.0)
    assert one["mean"] == 90.0 and one["sd"] is None and one["seeds"] == "0"
    shown = said("results", "--seeds", "--format=table", f"results={tmp_path}")[1]
    assert "40.0 … 48.0" in shown and "44.0" in shown


def test_rows_without_a_score_have_no_mean(said, tmp_path):
    Store(tmp_path).append([made.row(value=None)])
    code, out, err = said("results", "--seeds", f"results={tmp_path}")
    assert code == 0 and not out and "no scores" in err


def test_tables_are_json_on_request(said, tmp_path):
    Store(tmp_path).append([made.row(row_id="aa11", lat_ratio_ci_hi=float("inf"))])
    (row,) = json.loads(said("results", f"results={tmp_path}", "--json")[1])
    assert row["row_id"] == "aa11" and row["length"] == 512 and row["lat_ratio_ci_hi"] is None
    methods = json.loads(said("ls", "methods", "--json")[1])
    assert "vcc" in [method["name"] for method in methods]
    (f1,) = (m for m in json.loads(said("ls", "metrics", "--json")[1]) if m["name"] == "f1")
    assert f1 == {"name": "f1", "version": 1, "tasks": "narrativeqa qasper"}
    (qmsum,) = (t for t in json.loads(said("ls", "tasks", "--json")[1]) if t["name"] == "qmsum")
    assert qmsum["n_validation"] == 272
