"""Compares a ratio with calls that the supervisor timed by its own clock: vanilla may be slower
next to the method, and the method's process may have reported times that are too short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.statistics import paired as stats
from bench.statistics.between_processes import ratio_of_rounds, widened

SLOWED = 1.05
"""Times outside may differ by this factor before they replace those inside: a call then begins with
colder caches and sleeping threads."""


def witnessed(samples: Mapping[str, Any], ratio: stats.Ratio) -> tuple[stats.Ratio, dict[str, Any]]:
    """The ratio of the samples and the columns of the times outside; no columns without such times.
    If the times outside give a larger ratio, by more than its interval and SLOWED, then the ratio
    is theirs and `ratio_note` contains the reason; if by more than SLOWED alone, then its interval
    is widened to the end of theirs. A slow-down of both arms changes nothing. On a machine that was
    too busy for a verdict the ratio stays, without a verdict."""
    outside = samples.get("outside_process")
    if not outside:
        return ratio, {}
    inside = samples.get("pair_process") or [0] * len(samples["base_samples_ns"])
    base_inside, mine_inside = ((samples[f"{arm}_samples_ns"], inside) for arm in ("base", "lat"))
    base, mine = ((samples[f"{arm}_outside_samples_ns"], outside) for arm in ("base", "lat"))
    slowed = ratio_of_rounds([base_inside], [base])
    without = ratio_of_rounds([mine], [base])
    larger = ratio_of_rounds([mine, base_inside], [base, mine_inside])
    columns: dict[str, Any] = {"base_outside_ns": stats.summary(base[0]).median_ns}
    for name, found in (("base_inside_outside", slowed), ("outside", without)):
        columns[f"{name}_ratio"] = found.ratio
        columns[f"{name}_ci_lo"], columns[f"{name}_ci_hi"] = found.ci_lo, found.ci_hi
    note = None
    if _above(larger) and not samples.get("ratio_reason"):
        note = f"by the supervisor's clock the method takes ×{larger.ratio:.2f} of its time"
        if _above(slowed):
            note = f"vanilla was slowed next to the method, ×{slowed.ratio:.2f}"
        ratio = stats.ratio_of_ratios(_inverse(larger), ratio)
    elif larger.ratio > SLOWED:
        ratio = widened(ratio, without.ci_hi)
    return ratio, columns | {"ratio_note": note}


def _above(ratio: stats.Ratio) -> bool:
    return ratio.ratio > SLOWED and ratio.ci_lo > 1


def _inverse(ratio: stats.Ratio) -> stats.Ratio:
    return ratio._replace(ratio=1 / ratio.ratio, ci_lo=1 / ratio.ci_hi, ci_hi=1 / ratio.ci_lo)
