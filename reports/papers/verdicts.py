"""Decides when a measured figure reproduces a printed one: pure functions.

The printed value has a margin: half of its last digit, or the error of reading a plot.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from reports.intervals import Measured

SCORE_POINTS = 2.0
"""Scores of a model trained again differ by about as much from seed to seed."""
RATIO_FACTOR = 1.25
"""Ratios to vanilla of two machines: closer than a quarter is as good as hardware allows."""
REPEATABILITY = 0.01
"""Peak memory is read once and repeats within 1 %."""


class PaperVerdict(StrEnum):
    """The verdict of the stored rows on a printed cell: one word, each with one meaning."""

    REPRODUCED = "reproduced"
    """The whole measured interval lies within the tolerance of the printed value."""
    DIFFERS = "differs"
    """The interval excludes the printed value, and the measured one is beyond the tolerance."""
    UNDECIDED = "undecided"
    """The cell was measured, and the measurement doesn't tell."""
    BASELINE = "baseline"
    """The paper's own baseline: its ratio is 1 by definition."""
    NO_ROW = "no row yet"
    """No stored row is of this cell; its command makes one."""
    SKIPPED = "skipped"
    """A sweep passed the cell over, and its row says so."""
    CANNOT = "cannot"
    """It takes what isn't here: a system, data, a checkpoint, a setting, a printed number."""


class Judgement(NamedTuple):
    verdict: PaperVerdict
    reason: str = ""
    delta: float | None = None
    """measured − printed: points of a score, percent of a ratio."""


def judge_score(printed: float, margin: float, measured: Measured) -> Judgement:
    """Compares a score in 0…100 with the printed one."""
    delta = measured.value - printed
    if measured.lo is None or measured.hi is None:
        return Judgement(PaperVerdict.UNDECIDED, "no interval", delta)
    verdict = _verdict(delta, measured.lo - printed, measured.hi - printed, margin, SCORE_POINTS)
    wide = (
        f"the interval is too wide to tell (n={measured.n}): ±{SCORE_POINTS:g} points are tolerated"
    )
    return Judgement(verdict, wide if verdict is PaperVerdict.UNDECIDED else "", delta)


def judge_ratio(printed: float, margin: float, measured: Measured) -> Judgement:
    """Compares a ratio to vanilla with the printed one; `margin` is relative."""
    delta_pct = (measured.value / printed - 1) * 100
    if measured.lo is None or measured.hi is None:
        return Judgement(PaperVerdict.UNDECIDED, "no interval", delta_pct)
    middle, lo, hi = (
        math.log(end / printed) if 0 < end < math.inf else math.copysign(math.inf, end - 1)
        for end in (measured.value, measured.lo, measured.hi)
    )
    verdict = _verdict(middle, lo, hi, math.log1p(margin), math.log(RATIO_FACTOR))
    pairs = "" if measured.n is None else f" ({measured.n} pairs)"
    wide = f"the interval is too wide to tell{pairs}: ×{RATIO_FACTOR:g} is tolerated"
    return Judgement(verdict, wide if verdict is PaperVerdict.UNDECIDED else "", delta_pct)


def _verdict(middle: float, lo: float, hi: float, margin: float, tolerance: float) -> PaperVerdict:
    """The verdict, from the distances of the measured value and its interval to the printed
    value."""
    reach = tolerance + margin
    if -reach <= lo and hi <= reach:
        return PaperVerdict.REPRODUCED
    if (lo > margin or hi < -margin) and abs(middle) > reach:
        return PaperVerdict.DIFFERS
    return PaperVerdict.UNDECIDED
