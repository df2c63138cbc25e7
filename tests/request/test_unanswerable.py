"""`skip_unanswerable=true`: rows without a right answer are left out of a cell, and counted."""

import json
from pathlib import Path

import pytest

import bench
from bench.errors import RequestError
from bench.request import compose
from bench.request.cell import Cell
from bench.rows.rescore import rescored, scores
from bench.rows.store import Store
from tests import made

SKIP = "skip_unanswerable=true"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A request for three local rows, the second of which has no right answer."""
    row = {"context": "The pass key is 71432.", "input": "What is the pass key?"}
    answers = [["71432"], [], ["71432"]]
    lines = [json.dumps({"id": at, **row, "answer": answer}) for at, answer in enumerate(answers)]
    (tmp_path / "passkey.jsonl").write_text("\n".join(lines))
    model = made.checkpoint(tmp_path / "model")
    data = [f"data.dir={tmp_path}", "task=infinitebench_passkey", "length=512", "threads=1"]
    return [*data, f"model={model}", "n=2"]


def test_it_is_in_the_key_where_it_is_given():
    plain = bench.compose("task=gist", "length=512", "threads=1")
    assert bench.compose("task=gist", "length=512", "threads=1", "skip_unanswerable=false") == plain
    assert "skip_unanswerable" not in plain._content()
    skipping = bench.compose("task=gist", "length=512", "threads=1", SKIP)
    assert skipping.key != plain.key and skipping.prediction_key == plain.prediction_key
    assert skipping.columns["n_unanswerable"] is None  # embedded rows have answers
    assert Cell.from_json(skipping.to_json()) == skipping
    again = compose.command_of(skipping).split()[2:]
    assert SKIP in again
    assert Cell.with_rows(compose.compose(again), "test", "").skip_unanswerable


def test_the_row_is_named_or_left_out_and_counted(words, refused):
    with pytest.raises(RequestError, match="line 2: column 'answer' has no right answer; skip_una"):
        bench.compose(*words)
    assert "passkey.jsonl line 2" in refused("run", *words)
    cell = bench.compose(*words, SKIP)
    assert [row.id for row in cell.rows().rows] == ["0", "2"]
    assert cell.columns["n_unanswerable"] == 1


def test_a_row_of_such_a_cell_is_scored_again(words, tmp_path):
    results = tmp_path / "runs"
    made.answered(results, tmp_path / "model", [True, False], None, *words, SKIP)
    (row,) = Store(results).rows().to_pylist()
    assert (row["value"], row["n_scored"], row["n_samples_available"]) == (50, 2, 3)
    assert rescored(row, results)["value"] == 50
    assert sorted(scores(row, results).values()) == [0, 100]
