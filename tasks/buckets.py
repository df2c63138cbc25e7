"""Buckets of input length, so that quality is seen by length and not only on average.

An edge is a power of two: bucket "≤4096" holds rows of 2049 to 4096 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHORTEST = 512


@dataclass(frozen=True)
class Bucket:
    """Rows whose input had more than `above` and at most `upto` tokens before truncation; `rows`
    are their numbers."""

    above: int
    upto: int
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"≤{self.upto}"


def upper_edge(tokens: int) -> int:
    """The upper edge of the bucket that an input of so many tokens falls into: 512, 1024, …"""
    return max(SHORTEST, 1 << max(0, tokens - 1).bit_length())


def buckets(tokens_in: Sequence[int]) -> list[Bucket]:
    """The buckets that have rows, the shortest first."""
    held: dict[int, list[int]] = {}
    for row, tokens in enumerate(tokens_in):
        held.setdefault(upper_edge(tokens), []).append(row)
    return [
        Bucket(0 if edge == SHORTEST else edge // 2, edge, tuple(rows))
        for edge, rows in sorted(held.items())
    ]


def scores(
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], float], tokens_in: Sequence[int],
    predictions: Sequence[str], references: Sequence[Sequence[str]],
) -> dict[str, tuple[int, float]]:  # fmt: skip
    """Name of a bucket → how many rows it has, and their score by the metric itself: with one
    bucket it is the score of all."""
    return {
        bucket.name: (
            len(bucket.rows),
            score([predictions[i] for i in bucket.rows], [references[i] for i in bucket.rows]),
        )
        for bucket in buckets(tokens_in)
    }
