"""Columns of quality other than scores: the best constant answer, the answers that truncation
removed, and the weights of both arms."""

import json
import zipfile

import pytest

import bench
from bench.rows import derived_columns
from bench.rows.store import Predictions
from bench.status import QualityComparison
from tests import made

N = derived_columns.FEWEST_OTHERS
SAME, OWN = QualityComparison.SAME_WEIGHTS, QualityComparison.TRAINED_EACH


def local(folder, **splits: int):
    """A cell on the first 4 rows of its own data, with this number of rows in each split."""
    (folder / "scrolls").mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "scrolls/qasper.zip", "w") as file:
        for split, n in splits.items():
            rows = (
                {"id": f"{split}{i}", "pid": f"{split}{i}", "output": f"{split}{i}",
                 "input": f"Who is {i}?\n\nThe document of row {i}."}
                for i in range(n)
            )  # fmt: skip
            file.writestr(f"qasper/{split}.jsonl", "\n".join(map(json.dumps, rows)))
    model = made.checkpoint(folder / "model")
    words = (f"model={model}", "task=qasper", "data=local", f"data.dir={folder}", "n=4")
    return bench.compose(*words, "method=vanilla", "length=64", "threads=1")


def columns(cell):
    task = cell.build_task()
    rows = cell.rows().rows
    others = [row.id for row in derived_columns.other_rows(cell, task, rows)]
    return others, derived_columns.chance_columns(cell, task, rows, 50.0)


@pytest.mark.parametrize(
    ("splits", "first", "count"),
    [
        ({"validation": N + 4, "train": N}, "validation4", N),
        ({"validation": N + 3, "train": N + 1}, "train0", N + 1),
    ],
)
def test_rows_after_its_own_are_taken_first_then_the_training_split(splits, first, count, tmp_path):
    others, level = columns(local(tmp_path, **splits))
    assert (others[0], len(others)) == (first, count)
    assert level["chance"] == 0 and level["at_chance"] is False and level["chance_reason"] is None


@pytest.mark.parametrize("splits", [{"validation": 7}, {"validation": 4, "train": 3}])
def test_where_there_are_too_few_it_is_not_known(splits, tmp_path):
    _, level = columns(local(tmp_path, **splits))
    assert level["chance"] is level["at_chance"] is None
    reason = "it is chosen on 16 rows that aren't scored, and the data have 3 other rows"
    assert level["chance_reason"] == reason


def test_embedded_rows_never_end():
    cell = bench.compose("method=vanilla", "length=512", "n=3", "threads=1")
    own = {row.id for row in cell.rows().rows}
    others, level = columns(cell)
    assert len(others) == derived_columns.OTHERS and not own & {*others}
    assert 0 <= level["chance"] < 50


@pytest.mark.parametrize(("removed", "share"), [((True, False), 0.5), ((None, None), None)])
def test_of_rows_that_were_truncated_those_count_whose_answer_is_gone(tmp_path, removed, share):
    """Of each row all of its text was removed, or nothing; None: its prediction doesn't say."""
    model = made.checkpoint(tmp_path / "model")
    cell = bench.compose(f"model={model}", "task=longeval_lines", "length=512", "n=2")
    key, records = cell.prediction_key, []
    for row, gone in zip(cell.rows().rows, removed, strict=True):
        told = {} if gone is None else {"removed": (0, len(row.text) if gone else 0)}
        records.append({"id": row.id, "prediction": "x", "tokens_in": 900, **told})
    Predictions(tmp_path / "predictions", key).append(records)
    assert derived_columns.quality(cell, tmp_path, [key])["answer_cut_frac"] == share


@pytest.mark.parametrize(
    ("words", "expected"), [((), OWN), (("protocol=swap",), SAME), (("method=bigbird",), SAME)]
)
def test_the_weights_hashes_of_both_arms_decide(words, expected):
    cell = bench.compose("method=vcc", "length=512", "n=2", "threads=1", *words)
    base = cell.baseline()
    found = derived_columns.quality_arms_of(cell, base)
    assert found["quality_comparison"] == expected
    assert found["base_weights_sha256"] == base.model["weights_sha256"]
    assert json.loads(found["base_training"])["hours"] == 0.57
