"""Ranks as intervals, and which rows are significantly beaten: pure functions.

Two rows of a board are compared by a test on the same samples where their predictions are stored;
otherwise by their differences from vanilla on the same samples, or by their own intervals. Holm's
correction is over all pairs of the board.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.rows.predictions import documents
from bench.statistics import paired
from bench.statistics import scores as statistics
from bench.statistics.paired import SCALE
from reports.looks import VANILLA
from reports.rows import Row

Scores = Mapping[Any, float]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

Z95 = NormalDist().inv_cdf(0.975)
SIGNIFICANT = 0.05
SHARED = 2
"""Samples that two rows must share for a test on them."""
HOW = ("paired on the same samples", "paired through vanilla", "by their own intervals")


class Ranked(NamedTuple):
    """`first[i]` … `last[i]` are the ranks that row i may have; `better[i, j]` says that i is
    significantly better than j; `how` is the weakest of HOW that was used."""

    first: list[int]
    last: list[int]
    better: Bools
    how: str


def rank(rows: Sequence[Row], scores: Sequence[Scores | None]) -> Ranked:
    """Ranks of rows that all have a `value`; `scores[i]` are those of row i's samples, if kept."""
    n = len(rows)
    sign = -1.0 if rows and rows[0]["higher_is_better"] is False else 1.0
    value = sign * np.array([row["value"] for row in rows], float)
    p, weakest = _from_intervals(rows, value, sign)
    kept = [i for i in range(n) if scores[i]]
    for i in kept:
        for j in (j for j in kept if j < i):
            found = _from_samples(scores[i], scores[j])
            if found is not None:
                p[i, j] = p[j, i] = found
                weakest[i, j] = weakest[j, i] = 0
    below = np.tril_indices(n, -1)
    adjusted = np.ones((n, n))
    adjusted[below] = paired.holm(p[below].tolist())
    significant = np.minimum(adjusted, adjusted.T) < SIGNIFICANT
    better = significant & (value[:, None] > value[None, :])
    first = 1 + better.sum(axis=0)
    last = n - better.sum(axis=1)
    how = HOW[int(weakest[below].max())] if n > 1 else ""
    return Ranked(first.tolist(), last.tolist(), better, how)


def _from_samples(a: Scores | None, b: Scores | None) -> float | None:
    """p that scores of the same samples have the same mean; None where they share too few."""
    shared = [sample for sample in a or () if sample in (b or ())]
    if a is None or b is None or len(shared) < SHARED:
        return None
    ours, theirs = ([scores[sample] for sample in shared] for scores in (a, b))
    return statistics.paired_p(ours, theirs, documents(shared))


def _from_intervals(
    rows: Sequence[Row], value: Floats, sign: float
) -> tuple[Floats, NDArray[np.int64]]:
    """p of each pair from stored intervals, and which of HOW it is. Two intervals are joined as
    independent errors add up (Zou and Donner 2008): conservative for paired differences."""
    alone = _ends(rows, "value", "ci_lo", "ci_hi", sign)
    through = _ends(rows, "value_diff", "value_diff_ci_lo", "value_diff_ci_hi", sign)
    for i, row in enumerate(rows):
        if row["method"] == VANILLA:
            through[:, i] = 0.0
    base = [row["base_predictions_sha256"] for row in rows]
    base = [row["predictions_sha256"] if row["method"] == VANILLA else b
            for row, b in zip(rows, base, strict=True)]  # fmt: skip
    names = {name: i for i, name in enumerate(dict.fromkeys(base))}
    code = np.array([-1 if name is None else names[name] for name in base], int)
    one_base = (code[:, None] == code[None, :]) & (code[:, None] >= 0)
    p, p_through = _joined(value, alone), _joined(through[0], through)
    usable = one_base & ~np.isnan(p_through)
    p = np.where(usable, p_through, np.where(np.isnan(p), 1.0, p))
    return p, np.where(usable, 1, 2)


def _ends(rows: Sequence[Row], mid: str, lo: str, hi: str, sign: float) -> Floats:
    """[3, rows]: the middle, and how far the interval reaches below and above it."""
    columns = [[math.nan if row[n] is None else sign * row[n] for row in rows]
               for n in (mid, lo, hi)]  # fmt: skip
    middle, one, other = np.array(columns, float)
    # In older rows the interval of equal scores has no width, however few the samples are.
    few = [SCALE * (1 - 0.05 ** (1 / max(1, row["n_scored"] or 1))) for row in rows]
    room = np.where(one == other, few, 0.0)
    return np.array(
        [middle, middle - np.fmin(one, other) + room, np.fmax(one, other) - middle + room]
    )


def _joined(middle: Floats, ends: Floats) -> Floats:
    _, below, above = ends
    difference = middle[:, None] - middle[None, :]
    # What must be crossed for the difference to vanish: the higher's reach down, the lower's up.
    reach = np.hypot(below[:, None], above[None, :])
    reach = np.where(difference >= 0, reach, reach.T)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(difference == 0, 0.0, np.abs(difference) / reach) * Z95
    p: Floats = np.vectorize(math.erfc, otypes=[float])(z / math.sqrt(2))
    return p


def beaten(rows: Sequence[Row], better: Bools, cost: str) -> list[bool]:
    """Whether another row is significantly better in quality and cheaper in `cost` (ratio or
    mem_ratio), or significantly better in one of them and equal in the other."""
    cheaper, equal = _cheaper(rows, cost)
    answers = [row["predictions_sha256"] for row in rows]
    same = np.array([[a is not None and a == b for b in answers] for a in answers])
    hit = (better & (cheaper | equal)) | (same & cheaper)
    return [bool(hit[:, i].any()) for i in range(len(rows))]


def _cheaper(rows: Sequence[Row], cost: str) -> tuple[Bools, Bools]:
    """[i, j]: i is significantly cheaper than j; i costs exactly what j costs."""
    middle, lo, hi = np.array([_span(row, cost) for row in rows], float).T
    return hi[:, None] < lo[None, :], middle[:, None] == middle[None, :]


def _span(row: Row, cost: str) -> tuple[float | None, float | None, float | None]:
    """A ratio and the ends of its interval; vanilla's own is 1."""
    ratio = 1.0 if row["method"] == VANILLA else row[cost]
    if ratio is None:
        return None, None, None
    if cost == "mem_ratio":  # read once; it repeats within 1 %
        return ratio, ratio * (1 - paired.SAME_PCT / 200), ratio * (1 + paired.SAME_PCT / 200)
    lo, hi = (1.0, 1.0) if row[cost] is None else (row[f"{cost}_ci_lo"], row[f"{cost}_ci_hi"])
    return ratio, lo, hi
