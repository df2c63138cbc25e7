"""Times and memory of a row as ratios to unfused vanilla of the same cell and host."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from bench.rows.comparison import Comparison, Name
from bench.statistics import paired
from reports.intervals import Measured
from reports.papers.verdicts import REPEATABILITY
from reports.rows import Row

UNFUSED_MISSING = (
    "measured against fused attention while the paper's vanilla is unfused: the same cell with "
    "method=vanilla_eager is missing"
)

BUSY = "the host was too busy for a fair measurement"
PAGE_FAULTS = "its times hold page faults of blocks that were too large for malloc to keep"


class Reading(NamedTuple):
    """A figure of a row. Objections are reasons why it can't be compared with the printed cell;
    doubts are reasons why the comparison decides nothing. Also whether it is a score that isn't
    clearly above the best constant answer's; for a score against vanilla's, the weights of both;
    and for a ratio, the ratio to fused vanilla, None if it isn't known."""

    measured: Measured
    objections: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    at_chance: bool = False
    comparison: str = ""
    to_fused: float | None = None


def paired_figure(row: Row, unfused: Row | None, name: Name = "lat") -> Reading | None:
    """method / unfused vanilla, from the ratio of each to fused vanilla."""
    mine = Comparison.of(row, name).paired
    if mine is None:
        return None
    pair = [one for one in (row, unfused) if one]
    busy = any(one["noisy"] for one in pair)
    faults = any(one["large_memory_kept"] is False for one in pair)
    doubts = tuple(compress((BUSY, PAGE_FAULTS), (busy, faults)))
    base = Comparison.of(unfused, name).paired if unfused else None
    if base is None:
        return Reading(_as_measured(mine), (UNFUSED_MISSING,), doubts)
    return Reading(_as_measured(paired.ratio_of_ratios(base, mine)), (), doubts)


def _as_measured(ratio: paired.Ratio) -> Measured:
    return Measured(ratio.ratio, ratio.ci_lo, ratio.ci_hi, ratio.n)


def peak(names: Sequence[str]) -> Callable[[Row, Row | None], Reading | None]:
    """method / unfused vanilla for a sum of bytes, or against fused vanilla if there is no unfused
    row."""

    def ratio(row: Row, unfused: Row | None) -> Reading | None:
        mine = _sum(row, names)
        base = _sum(unfused, names) if unfused else None
        objections: tuple[str, ...] = ()
        if base is None:
            base = _sum(row, [f"base_{name}" for name in names])
            objections = (UNFUSED_MISSING,)
        if not mine or not base:
            return None
        value = mine / base
        return Reading(
            Measured(value, value / (1 + REPEATABILITY), value * (1 + REPEATABILITY)), objections
        )

    return ratio


def _sum(row: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = [row[name] for name in names]
    return None if None in values else sum(values)


def attention(row: Row, unfused: Row | None) -> Reading | None:
    """Time inside the attention, method / unfused vanilla: the attention's share of each one's pass
    through the layers × the paired ratio of their latencies."""
    latency = paired_figure(row, unfused)
    own, other = _attention_share(row), _attention_share(unfused) if unfused else None
    if latency is None or own is None or other is None:
        return None
    (mine, reach), (base, base_reach) = own, other
    of_time = latency.measured
    value = math.exp(mine - base) * of_time.value
    if reach is None or base_reach is None or not of_time.lo or of_time.hi is None:
        why = "its time was read too few times for an interval"
        return latency._replace(measured=Measured(value, None, None), doubts=(*latency.doubts, why))
    below, above = (
        math.hypot(math.log(end / of_time.value), reach, base_reach)
        for end in (of_time.lo, of_time.hi)
    )
    ends = (value * math.exp(-below), value * math.exp(above))
    return latency._replace(measured=Measured(value, *ends, of_time.n))


def _attention_share(row: Row) -> tuple[float, float | None] | None:
    """Logarithm of the attention's share, and the half-width of its 95 % interval; None: at most
    two measurements."""
    attended, walks = row["attend_samples_ns"], row["encode_samples_ns"]
    if attended is None or walks is None or not len(attended) or not min(attended):
        return None
    logs = [math.log(part / whole) for part, whole in zip(attended, walks, strict=True)]
    n = len(logs)
    if n < 3:
        return statistics.mean(logs), None
    reach = paired.student_t_quantile(n - 1) * statistics.stdev(logs) / math.sqrt(n)
    return statistics.mean(logs), reach


def whole_answer(row: Row, unfused: Row | None, tokens: int) -> Reading | None:
    """Time of the first token and `tokens` − 1 further ones, method / unfused vanilla. A further
    token's time is measured once for each arm; the first token's is paired. None for no tokens."""
    reading = paired_figure(row, unfused)
    first_ns = row["lat_base_median_ns"]
    if not tokens or reading is None or unfused is None or first_ns is None:
        return None
    mine, base = (one["decode_ns_per_token"] for one in (row, unfused))
    to_fused, to_unfused = (Comparison.of(one, "lat").paired for one in (row, unfused))
    if mine is None or base is None or to_fused is None or to_unfused is None:
        return None

    def total(first: float, further_ns: int) -> float:
        return float(first * first_ns + (tokens - 1) * further_ns)

    value = total(to_fused.ratio, mine) / total(to_unfused.ratio, base)
    lo = total(to_fused.ci_lo, mine) / total(to_unfused.ci_hi, base)
    hi = total(to_fused.ci_hi, mine) / max(total(to_unfused.ci_lo, base), 1)
    return reading._replace(measured=Measured(value, lo, hi, reading.measured.n))


def memory(row: Row, unfused: Row | None) -> Reading | None:
    """Peak of one cold forward above the loaded model, method / unfused vanilla."""
    on_gpu = row["gpu_alloc_delta_bytes"] is not None
    return peak(["gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"])(row, unfused)


PAIRED: dict[str, Callable[[Row, Row | None], Reading | None]] = {
    "latency": paired_figure,
    "training": lambda row, unfused: paired_figure(row, unfused, "train"),
    "attention": attention,
    "memory": memory,
    "process_memory": peak(["rss_base_bytes", "rss_peak_delta_bytes"]),
    "training_memory": peak(["train_peak_bytes"]),
}
