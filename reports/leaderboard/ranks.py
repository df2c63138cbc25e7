"""Ranks as intervals, and which rows are significantly beaten: pure functions.

Two rows of a board are compared by a test on the same samples if their predictions are stored;
otherwise by their differences from vanilla on the same samples, or by their intervals. Holm's
correction is over all pairs of the board.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from statistics import NormalDist
from typing import Any, NamedTuple

from bench.rows.store import documents
from bench.statistics import paired
from bench.statistics import scores as statistics
from bench.statistics.paired import SCALE
from reports.looks import VANILLA
from reports.rows import Row

Scores = Mapping[Any, float]
Span = tuple[float, float, float]
"""A figure, and the lower and the upper end of its interval; NaN where it isn't known."""

Z95 = NormalDist().inv_cdf(0.975)
SIGNIFICANT = 0.05
SHARED = 2
"""Samples that two rows must share for a test on them."""
HOW = ("paired on the same samples", "paired through vanilla", "by their own intervals")
ALONE = ("value", "ci_lo", "ci_hi")
THROUGH = ("value_diff", "value_diff_ci_lo", "value_diff_ci_hi")
UNKNOWN = (math.nan,) * 3


class Ranked(NamedTuple):
    """`first[i]` … `last[i]` are the possible ranks of row i; `better` has (i, j) if i is
    significantly better than j; `how` is the weakest member of HOW that was used."""

    first: list[int]
    last: list[int]
    better: set[tuple[int, int]]
    how: str


def rank(rows: Sequence[Row], scores: Sequence[Scores | None]) -> Ranked:
    """Ranks of rows that all have a `value`; `scores[i]` are those of row i's samples, if kept."""
    sign = -1 if rows and rows[0]["higher_is_better"] is False else 1
    alone = [_span(row, ALONE) for row in rows]
    through = [(0.0,) * 3 if row["method"] == VANILLA else _span(row, THROUGH) for row in rows]
    bases = [
        row["predictions_sha256" if row["method"] == VANILLA else "base_predictions_sha256"]
        for row in rows
    ]
    pairs = list(combinations(range(len(rows)), 2))
    p, used = [], []
    for i, j in pairs:
        found = _from_samples(scores[i], scores[j])
        how = 0
        if found is None:
            one_base = bases[i] == bases[j] is not None
            found = _p(through[i], through[j]) if one_base else math.nan
            how = 1
        if math.isnan(found):
            found, how = _p(alone[i], alone[j]), 2
        p.append(1.0 if math.isnan(found) else found)
        used.append(how)
    better = set()
    for (i, j), adjusted in zip(pairs, paired.holm(p), strict=True):
        ahead = sign * (rows[i]["value"] - rows[j]["value"])
        if adjusted < SIGNIFICANT and ahead:
            better.add((i, j) if ahead > 0 else (j, i))
    over, under = Counter(i for i, _ in better), Counter(j for _, j in better)
    first = [1 + under[i] for i in range(len(rows))]
    last = [len(rows) - over[i] for i in range(len(rows))]
    return Ranked(first, last, better, HOW[max(used)] if used else "")


def _from_samples(a: Scores | None, b: Scores | None) -> float | None:
    """p-value for equal means of scores on the same samples; None if they share too few samples."""
    if not a or not b:
        return None
    shared = [sample for sample in a if sample in b]
    if len(shared) < SHARED:
        return None
    ours, theirs = ([scores[sample] for sample in shared] for scores in (a, b))
    return statistics.paired_p(ours, theirs, documents(shared))


def _span(row: Row, columns: tuple[str, str, str]) -> Span:
    middle, lo, hi = (row[name] for name in columns)
    if None in (middle, lo, hi):
        return UNKNOWN
    # In older rows the interval of equal scores has no width, even for few samples.
    room = SCALE * (1 - 0.05 ** (1 / max(1, row["n_scored"] or 1))) if lo == hi else 0.0
    return middle, lo - room, hi + room


def _p(a: Span, b: Span) -> float:
    """p-value for equality of two figures, from their intervals, combined like independent errors
    (Zou and Donner 2008): conservative for paired differences. NaN if an interval isn't known."""
    low, high = sorted((a, b))
    difference = high[0] - low[0]
    if difference == 0:
        return 1.0
    # The half-widths that face each other: the higher one's lower side, the lower one's upper side.
    reach = math.hypot(high[0] - high[1], low[2] - low[0])
    return math.erfc(difference / reach * Z95 / math.sqrt(2)) if reach else 0.0


def beaten(rows: Sequence[Row], better: set[tuple[int, int]], cost: str) -> list[bool]:
    """Whether another row is significantly better in quality and cheaper in `cost` (ratio or
    mem_ratio), or significantly better in one of them and equal in the other."""
    costs = [_cost(row, cost) for row in rows]
    answers = [row["predictions_sha256"] for row in rows]
    hit = set()
    for i, j in permutations(range(len(rows)), 2):
        cheaper, equal = costs[i][2] < costs[j][1], costs[i][0] == costs[j][0]
        same = answers[i] == answers[j] is not None
        if (same and cheaper) or ((i, j) in better and (cheaper or equal)):
            hit.add(j)
    return [j in hit for j in range(len(rows))]


def _cost(row: Row, cost: str) -> Span:
    """A ratio and the ends of its interval; for vanilla it is 1."""
    ratio = 1.0 if row["method"] == VANILLA else row[cost]
    if ratio is None:
        return UNKNOWN
    if cost == "mem_ratio":  # measured once; it repeats within 1 %
        return ratio, ratio * (1 - paired.SAME_PCT / 200), ratio * (1 + paired.SAME_PCT / 200)
    if row[cost] is None:
        return ratio, 1.0, 1.0
    lo, hi = row[f"{cost}_ci_lo"], row[f"{cost}_ci_hi"]
    return (ratio, math.nan, math.nan) if None in (lo, hi) else (ratio, lo, hi)
