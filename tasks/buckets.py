"""Buckets of input length, so that quality is seen by length and not only on average.

Pure functions of token counts and scores. An edge is a power of two: bucket "≤4096" holds rows of
2049 to 4096 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST = 512


@dataclass(frozen=True)
class Bucket:
    """Rows whose input had more than `above` and at most `upto` tokens before truncation.
    `score` is the mean of theirs."""

    above: int
    upto: int
    n: int
    score: float

    @property
    def name(self) -> str:
        return f"≤{self.upto}"


def upper_edge(tokens: int) -> int:
    """The upper edge of the bucket that an input of so many tokens falls into: 512, 1024, …"""
    return max(SHORTEST, 1 << max(0, tokens - 1).bit_length())


def buckets(tokens_in: Sequence[int], scores: Sequence[float]) -> list[Bucket]:
    """The buckets that have rows, the shortest first. `scores` are those of Task.score_each.
    ValueError unless there is one score a row."""
    if len(tokens_in) != len(scores):
        raise ValueError(f"{len(tokens_in)} lengths, {len(scores)} scores; expected as many")
    held: dict[int, list[float]] = {}
    for tokens, score in zip(tokens_in, scores, strict=True):
        held.setdefault(upper_edge(tokens), []).append(score)
    return [
        Bucket(
            0 if edge == SHORTEST else edge // 2, edge, len(found), math.fsum(found) / len(found)
        )
        for edge, found in sorted(held.items())
    ]
