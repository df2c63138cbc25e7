"""Buckets of length: every row in one, edges at powers of two."""

import pytest

from tasks.buckets import Bucket, buckets, upper_edge


@pytest.mark.parametrize(
    ("tokens", "edge"),
    [(0, 512), (1, 512), (512, 512), (513, 1024), (1024, 1024), (4097, 8192), (100_000, 131072)],
)
def test_edges(tokens, edge):
    assert upper_edge(tokens) == edge


def test_scores_are_averaged_in_each_bucket():
    found = buckets([100, 3000, 4096, 9000], [10.0, 50.0, 100.0, 0.0])
    assert found == [Bucket(0, 512, 1, 10), Bucket(2048, 4096, 2, 75), Bucket(8192, 16384, 1, 0)]
    assert [bucket.name for bucket in found] == ["≤512", "≤4096", "≤16384"]
    assert buckets([], []) == []


def test_every_row_has_a_score():
    with pytest.raises(ValueError, match="2 lengths, 1 scores"):
        buckets([1, 2], [1.0])
