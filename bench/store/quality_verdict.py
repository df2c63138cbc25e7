"""Whether a method keeps vanilla's quality: what a row's two scores and their difference say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.request.schema import BASELINE
from bench.statistics.constants import SCALE
from bench.status import QualityVerdict, Verdict

KEPT_SHARE = 0.99
"""Share of vanilla's score that MLPerf Inference requires in its closed division."""
CEILING_POINTS = 1.0


def quality_verdict(row: Mapping[str, Any]) -> QualityVerdict | None:
    """Verdict by the interval of the difference from vanilla; None if there is no interval.

    Where vanilla's own score isn't clearly above that of one constant answer, or within a point of
    the best possible, the rows can't tell methods apart, unless the difference is significant.
    """
    base, lo, hi = (row.get(n) for n in ("base_value", "value_diff_ci_lo", "value_diff_ci_hi"))
    if base is None or lo is None or hi is None:
        return None
    upwards = row.get("higher_is_better") is not False
    lo, hi = (lo, hi) if upwards else (-hi, -lo)
    if vanilla_at_chance(row):
        return QualityVerdict.HIGHER if lo > 0 else QualityVerdict.UNTELLABLE
    kept = lo >= -(1 - KEPT_SHARE) * abs(base)
    if not kept and hi < 0:
        return QualityVerdict.LOWER
    if upwards and base >= SCALE - CEILING_POINTS:
        return QualityVerdict.UNTELLABLE
    if kept:
        return QualityVerdict.HIGHER if lo > 0 else QualityVerdict.KEPT
    return QualityVerdict.UNDECIDED


def keeps_quality(row: Mapping[str, Any]) -> bool:
    """Whether a row's score is at least KEPT_SHARE of vanilla's, or its interval shows that it is.
    Not where no score was measured, or vanilla's isn't clearly above chance."""
    value, base = row.get("value"), row.get("base_value")
    if value is None or base is None or vanilla_at_chance(row):
        return False
    if quality_verdict(row) in (QualityVerdict.KEPT, QualityVerdict.HIGHER):
        return True
    upwards = row.get("higher_is_better") is not False
    return bool(value >= KEPT_SHARE * base if upwards else value <= base / KEPT_SHARE)


def faster_as_good(row: Mapping[str, Any]) -> bool:
    """Whether a row's speed-up counts: faster than vanilla, at vanilla's quality."""
    return row.get("verdict") == Verdict.FASTER and keeps_quality(row)


def vanilla_at_chance(row: Mapping[str, Any]) -> bool:
    """Whether vanilla's score, in its own row or in another method's, isn't clearly above chance.
    Such rows are not ranked."""
    if row.get("method") == BASELINE:
        return bool(row.get("at_chance"))
    chance, low = row.get("chance"), row.get("base_ci_lo")
    return chance is not None and low is not None and low <= chance
