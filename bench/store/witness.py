"""What calls that the supervisor timed by its own clock say of a ratio: whether vanilla was slowed
next to the method, and whether the method took longer than its own clock says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.statistics import paired as stats
from bench.statistics.between_processes import ratio_of_rounds

SLOWED = 1.05
"""Times outside may differ by this factor before they replace those inside: a call then begins with
colder caches and sleeping threads."""


class Witnessed(NamedTuple):
    """A ratio, perhaps of times outside, with their columns; `note` says why it is."""

    ratio: stats.Ratio
    columns: dict[str, Any]
    note: str | None = None


def witnessed(samples: Mapping[str, Any], ratio: stats.Ratio) -> Witnessed:
    """The ratio of samples that have times outside. It is that of times outside where these give a
    larger one by more than the interval and SLOWED: vanilla was slowed next to the method, or the
    method took longer than its process's clock says. What slows both arms changes nothing, and on
    a machine that was too busy for a verdict nothing does."""
    outside = samples.get("outside_process")
    if not outside:
        return Witnessed(ratio, {})
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
    return Witnessed(ratio, columns | {"ratio_note": note}, note)


def _above(ratio: stats.Ratio) -> bool:
    return ratio.ratio > SLOWED and ratio.ci_lo > 1


def _inverse(ratio: stats.Ratio) -> stats.Ratio:
    return ratio._replace(ratio=1 / ratio.ratio, ci_lo=1 / ratio.ci_hi, ci_hi=1 / ratio.ci_lo)


def names(prefix: str, known: Sequence[str]) -> dict[str, str]:
    """Columns of latency → their names with a prefix."""
    return {name: f"{prefix}{name}" for name in known}
