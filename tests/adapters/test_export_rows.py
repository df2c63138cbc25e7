"""bench export rows: stored rows in the formats of other tools. Its wrong requests:
tests/cli/snapshots/refused_rows.txt."""

import csv
import json
import math

import pytest

from bench.adapters.export import TARGETS
from bench.rows.columns import COLUMNS
from bench.rows.store import Store
from tests import made
from tests.rows.test_results import bench


@pytest.fixture
def stored(tmp_path):
    """Two rows; text of the second would be formulas in a spreadsheet."""
    results = tmp_path / "runs"
    Store(results).append([
        made.row(row_id="aa", method="vcc", metric="f1", value=-12.5, ci_lo=-20.0, ci_hi=math.inf,
                 n_scored=40, higher_is_better=True, lat_samples_ns=[1, 2]),
        made.row(row_id="bb", method="=HYPERLINK(1)", model="@SUM(1)", command=" -1+1, \"x\"\nline",
                 method_params='{"k": 8}'),
    ])  # fmt: skip
    return results


def exported(capsys, results, to, into):
    return bench(capsys, "export", "rows", "--to", to, "--into", into, f"results={results}")


def test_csv_has_numbers_as_numbers_and_no_formulas(stored, tmp_path, capsys):
    code, out, _ = exported(capsys, stored, "csv", tmp_path / "rows.csv")
    assert code == 0 and out == [f"{tmp_path / 'rows.csv'}: 2 rows"]
    with open(tmp_path / "rows.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["value"]) == -12.5 and first["higher_is_better"] == "true"
    assert first["lat_median_ns"] == "" and "lat_samples_ns" not in first
    assert second["method"] == "'=HYPERLINK(1)" and second["model"] == "'@SUM(1)"
    assert second["command"] == '\' -1+1, "x"\nline'


def test_jsonl_has_every_column_and_no_infinity(stored, tmp_path, capsys):
    code, _, _ = exported(capsys, stored, "jsonl", tmp_path / "new/rows.jsonl")
    first, second = map(json.loads, (tmp_path / "new/rows.jsonl").read_text().splitlines())
    assert code == 0 and first.keys() == COLUMNS.keys()
    assert first["lat_samples_ns"] == [1, 2] and first["ci_hi"] is None
    assert second["method_params"] == {"k": 8} and second["model"] == "@SUM(1)"


@pytest.mark.parametrize("to", ["csv", "jsonl", "every_eval_ever", "mlflow", "wandb"])
def test_only_an_own_export_is_written_again(stored, tmp_path, capsys, to):
    into = tmp_path / "out"
    if folder := TARGETS[to].into == "DIR":
        into.mkdir()
    theirs = into / "theirs.txt" if folder else into
    theirs.write_text("theirs")
    code, _, err = exported(capsys, stored, to, into)
    assert code == 2 and len(err) == 1 and f"{into} holds what bench didn't write" in err[0]
    assert theirs.read_text() == "theirs"
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}
    if to in ("mlflow", "wandb"):
        return
    theirs.unlink()
    for _ in range(2):
        assert exported(capsys, stored, to, into)[0] == 0


def test_only_an_own_submission_is_written_again(tmp_path, capsys, monkeypatch):
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prediction": "x"}')
    monkeypatch.setattr("tasks.loading.reader.Reader.ids", lambda *_: ["a"])
    words = ("export", "qmsum", tmp_path / "p.jsonl", tmp_path / "out.json")
    assert [bench(capsys, *words)[0] for _ in range(2)] == [0, 0]
    (tmp_path / "out.json").write_text("mine")
    code, _, err = bench(capsys, *words)
    assert code == 2 and len(err) == 1 and "holds what bench didn't write" in err[0]
    assert (tmp_path / "out.json").read_text() == "mine"


@pytest.mark.parametrize("client", ["mlflow", "wandb"])
def test_a_tracker_without_its_client_is_named(stored, tmp_path, capsys, monkeypatch, client):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = exported(capsys, stored, client, tmp_path / "out")
    assert code == 2 and err == [
        f"bench: --to {client} needs its client, which isn't installed: pip install {client}"
    ]
