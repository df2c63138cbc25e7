"""Quality by input length, in buckets whose edges are powers of two: "≤4096" has the rows with 2049
to 4096 tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHORTEST = 512


@dataclass(frozen=True)
class Bucket:
    """The indices of the rows whose input has more than `above` and at most `upto` tokens before
    truncation."""

    above: int
    upto: int
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"≤{self.upto}"


def upper_edge(tokens: int) -> int:
    """The upper edge of the bucket for an input of this many tokens: 512, 1024, …"""
    return max(SHORTEST, 1 << max(0, tokens - 1).bit_length())


def buckets(tokens_in: Sequence[int]) -> list[Bucket]:
    """The non-empty buckets, shortest first."""
    by_edge: dict[int, list[int]] = {}
    for row, tokens in enumerate(tokens_in):
        by_edge.setdefault(upper_edge(tokens), []).append(row)
    return [
        Bucket(0 if edge == SHORTEST else edge // 2, edge, tuple(rows))
        for edge, rows in sorted(by_edge.items())
    ]


def scores(
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], float], tokens_in: Sequence[int],
    predictions: Sequence[str], references: Sequence[Sequence[str]],
) -> dict[str, tuple[int, float]]:  # fmt: skip
    """For each bucket's name, its number of rows and the metric's score on these rows."""
    return {
        bucket.name: (
            len(bucket.rows),
            score([predictions[i] for i in bucket.rows], [references[i] for i in bucket.rows]),
        )
        for bucket in buckets(tokens_in)
    }
