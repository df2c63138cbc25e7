"""The weights with which the two scores of a row were measured."""

from __future__ import annotations

import json

import pytest

import bench
from bench.rows import derived_columns
from bench.status import QualityComparison

SAME, OWN = QualityComparison.SAME_WEIGHTS, QualityComparison.TRAINED_EACH
WORDS = ("method=vcc", "length=512", "n=2", "threads=1")


@pytest.mark.parametrize(
    ("words", "expected"), [((), OWN), (("protocol=swap",), SAME), (("method=bigbird",), SAME)]
)
def test_the_weights_hashes_of_both_arms_decide(words, expected):
    cell = bench.compose(*WORDS, *words)
    base = cell.baseline()
    columns = derived_columns.quality_arms_of(cell, base)
    assert columns["quality_comparison"] == expected
    assert columns["base_weights_sha256"] == base.model["weights_sha256"]
    assert json.loads(columns["base_training"])["hours"] == 0.57
