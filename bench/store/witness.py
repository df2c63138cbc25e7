"""What calls that the supervisor timed by its own clock say of a ratio: whether vanilla was slowed
next to the method, and whether the method took longer than its own clock says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.statistics import between_processes
from bench.statistics import paired as stats

SLOWED = 1.05
"""Times outside may differ by this factor before they replace those inside: a call then begins with
colder caches and sleeping threads."""


class Witnessed(NamedTuple):
    """A ratio, perhaps against times outside, with the columns of these; `note` says why it is."""

    ratio: stats.Ratio
    columns: dict[str, Any]
    note: str | None = None


def witnessed(samples: Mapping[str, Any], ratio: stats.Ratio) -> Witnessed:
    """The ratio of samples with times outside. It is against vanilla's outside where vanilla was
    slower next to the method by more than the interval and SLOWED, and by the supervisor's clock
    where the method took as much longer by that."""
    outside = samples.get("outside_process")
    if not outside:
        return Witnessed(ratio, {})
    places = samples.get("pair_process") or [0] * len(samples["base_samples_ns"])
    base, mine = (
        between_processes.unpaired_ratio(
            samples[f"{arm}_samples_ns"], places, samples[f"{arm}_outside_samples_ns"], outside
        )
        for arm in ("base", "lat")
    )
    columns: dict[str, Any] = {
        "base_outside_ns": stats.summary(samples["base_outside_samples_ns"]).median_ns
    }
    for arm, found in (("base", base), ("lat", mine)):
        columns |= {
            f"{arm}_inside_outside_ratio": found.ratio,
            f"{arm}_inside_outside_ci_lo": found.ci_lo,
            f"{arm}_inside_outside_ci_hi": found.ci_hi,
        }
    notes = []
    if base.ratio > SLOWED and base.ci_lo > 1:
        notes.append(f"vanilla was slowed next to the method, ×{base.ratio:.2f}")
        ratio = stats.ratio_of_ratios(_inverse(base), ratio)
    longer = _inverse(mine)
    if longer.ratio > SLOWED and longer.ci_lo > 1:
        notes.append(f"by the supervisor's clock the method takes ×{longer.ratio:.2f}")
        ratio = stats.ratio_of_ratios(mine, ratio)
    note = "; ".join(notes) or None
    return Witnessed(ratio, columns | {"ratio_note": note}, note)


def _inverse(ratio: stats.Ratio) -> stats.Ratio:
    return ratio._replace(ratio=1 / ratio.ratio, ci_lo=1 / ratio.ci_hi, ci_hi=1 / ratio.ci_lo)


def names(prefix: str, known: Sequence[str]) -> dict[str, str]:
    """Columns of latency → their names with a prefix."""
    return {name: f"{prefix}{name}" for name in known}
