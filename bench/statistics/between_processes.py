"""The ratio of pairs that were timed in several processes, with the process as the unit.

All pairs of a process share its memory layout and the state of the machine, so more pairs don't
predict the next process. Student's t over the processes' median paired log ratios gives the
interval, which is valid for any share of the variance between processes. One process can't show
this share: its interval is widened by the assumed deviation between processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.statistics import paired
from bench.statistics.paired import ALPHA, ASSUMED_SD_PCT

BISECTIONS = 60


Timed = tuple[ArrayLike, ArrayLike]
"""Times, and the number of the round of each."""


class ProcessRatio(NamedTuple):
    """A ratio, the number of processes in which its pairs were timed, and the standard deviation of
    their ratios in percent, None for one process."""

    ratio: paired.Ratio
    processes: int
    sd_pct: float | None


def paired_ratio(
    method_ns: ArrayLike,
    base_ns: ArrayLike,
    process: ArrayLike | None = None,
    seed: int = 0,
) -> ProcessRatio:
    """The ratio of pairs, where pair i was timed in process `process[i]`; None: all in one process.

    The ratio of several processes is the geometric mean of their median paired ratios. Its interval
    is the hull of the t interval over processes and the interval of all pairs, its p the larger of
    the two. One process is one draw of a normal distribution with ASSUMED_SD_PCT.
    Raises ValueError as `paired.paired_ratio` does, and when `process` has another length.
    """
    within = paired.paired_ratio(method_ns, base_ns, seed)
    places = np.zeros(within.n) if process is None else np.asarray(process)
    if places.shape != (within.n,):
        raise ValueError(f"{within.n} pairs, and processes of {places.size}")
    logs = np.log(np.asarray(method_ns, float) / np.asarray(base_ns, float))
    medians = np.array([np.median(logs[places == one]) for one in np.unique(places)])
    if len(medians) < 2:
        return ProcessRatio(_of_one(within), 1, None)
    across = _of_draws(medians)
    agree = (across.ratio - 1) * (within.ratio - 1) > 0
    ratio = across._replace(
        ci_lo=min(within.ci_lo, across.ci_lo),
        ci_hi=max(within.ci_hi, across.ci_hi),
        p=max(within.p, across.p) if agree else 1.0,
        n=within.n,
    )
    return ProcessRatio(ratio, len(medians), math.expm1(float(medians.std(ddof=1))) * 100)


def ratio_of_rounds(above: Sequence[Timed], below: Sequence[Timed]) -> paired.Ratio:
    """The ratio of times that were measured separately in each of some rounds: in each round, the
    product of the medians of `above` divided by that of `below`. The geometric mean over the rounds
    that all have, and Student's t over them. One round is one draw of a normal distribution with
    ASSUMED_SD_PCT. Raises ValueError without a round."""
    series = [(np.asarray(ns, float), np.asarray(at)) for ns, at in (*above, *below)]
    shared = sorted(set.intersection(*(set(at.tolist()) for _, at in series)))
    if not shared:
        raise ValueError("no round has all times")
    signs = [1] * len(above) + [-1] * len(below)
    logs = np.array(
        [
            sum(
                sign * np.log(np.median(ns[at == one]))
                for sign, (ns, at) in zip(signs, series, strict=True)
            )
            for one in shared
        ]
    )
    return _of_draws(logs)


def _of_draws(logs: NDArray[np.float64]) -> paired.Ratio:
    """The ratio whose logarithm was drawn several times, by Student's t. A single draw comes from a
    normal distribution with ASSUMED_SD_PCT."""
    centre, count, p = float(logs.mean()), len(logs), 1.0
    if count == 1:
        reach = NormalDist().inv_cdf(0.975) * math.log1p(ASSUMED_SD_PCT / 100)
    else:
        error = float(logs.std(ddof=1)) / math.sqrt(count)
        reach = student_t_quantile(count - 1) * error
        p = student_t_p(abs(centre) / error, count - 1) if error else float(not centre)
    ratio, lo, hi = (math.exp(centre + side * reach) for side in (0, -1, 1))
    return paired.Ratio(ratio, lo, hi, p, count)


def _of_one(within: paired.Ratio) -> paired.Ratio:
    """One process's ratio as an estimate for any process; the two errors are independent."""
    factor = (1 + ASSUMED_SD_PCT / 100) ** NormalDist().inv_cdf(0.975)
    another = paired.Ratio(1.0, 1 / factor, factor, 1.0, within.n)
    both = paired.ratio_of_ratios(another, within)
    return both._replace(p=max(both.p, within.p))


def widened(ratio: paired.Ratio, value: float) -> paired.Ratio:
    """The ratio with an interval that also includes `value`, from another measurement; p is 1 if
    the interval then includes 1."""
    lo, hi = min(ratio.ci_lo, value), max(ratio.ci_hi, value)
    wider = ratio._replace(ci_lo=lo, ci_hi=hi)
    return wider._replace(p=1.0) if lo <= 1 <= hi and wider != ratio else wider


def student_t_p(t: float, df: int) -> float:
    """Two-sided p-value of Student's t with whole degrees of freedom (Abramowitz and Stegun,
    26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(df))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = df % 2
    term = cos if odd else 1.0
    total = 0.0
    for k in range(2 + odd, df + 1, 2):
        total += term
        term *= cos**2 * (k - 1) / k
    inside = (angle + sin * total) * 2 / math.pi if odd else sin * total
    return max(0.0, 1.0 - inside)


def student_t_quantile(df: int) -> float:
    """The t of `df` degrees of freedom whose two-sided p-value is ALPHA."""
    low, high = 0.0, 1e6
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, df) > ALPHA else (low, middle)
    return high
