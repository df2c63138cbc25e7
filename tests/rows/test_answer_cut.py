"""The share of rows whose answer truncation removed, from stored predictions."""

from __future__ import annotations

import pytest

import bench
from bench.rows import derived_columns
from bench.rows.predictions import Predictions
from tests import made


@pytest.mark.parametrize(
    ("records", "share"),
    [
        ([{"tokens_in": 900, "removed": "all"}, {"tokens_in": 900, "removed": "none"}], 0.5),
        ([{"tokens_in": 900}, {"tokens_in": 900}], None),
    ],
)
def test_of_rows_that_were_truncated_those_count_whose_answer_is_gone(tmp_path, records, share):
    model = made.checkpoint(tmp_path / "model")
    cell = bench.compose(f"model={model}", "task=longeval_lines", "length=512", "n=2")
    removed = {"all": lambda text: (0, len(text)), "none": lambda text: (0, 0)}
    key = cell.prediction_key
    Predictions(tmp_path / "predictions", key).append(
        {"id": row.id, "prediction": "x"}
        | {k: removed[v](row.text) if k == "removed" else v for k, v in record.items()}
        for row, record in zip(cell.rows().rows, records, strict=True)
    )
    assert derived_columns.quality(cell, tmp_path, [key])["answer_cut_frac"] == share
