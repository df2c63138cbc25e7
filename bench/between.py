"""A ratio whose pairs were timed in several processes: the process is the unit of its interval.

All pairs of a process share where its memory came to lie and what the machine did meanwhile, so
more of them don't tell how the next process will be. Each process gives one number, its median
paired log ratio, and Student's t over these numbers gives the interval: it is as wide as few
processes make it, and holds whatever the share of the spread that lies between them. It is never
narrower than the interval that all pairs give as if they came from one process.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bench import stats

BISECTIONS = 60


class Shared(NamedTuple):
    """`processes` that the pairs come from, and the standard deviation between their ratios in
    percent, None where there is one process."""

    ratio: stats.Ratio
    processes: int
    sd_pct: float | None


def paired_ratio(
    method_ns: ArrayLike, base_ns: ArrayLike, process: ArrayLike | None = None, seed: int = 0
) -> Shared:
    """The ratio of pairs of which `process[i]` says where pair i was timed; None: all in one.

    Of several processes the ratio is the geometric mean of their median paired ratios, the
    interval joins that of t over the processes and that of all pairs together, and p is the larger
    of the two. Raises ValueError as stats.paired_ratio does, and when `process` has another length.
    """
    within = stats.paired_ratio(method_ns, base_ns, seed)
    places = np.zeros(within.n) if process is None else np.asarray(process)
    if places.shape != (within.n,):
        raise ValueError(f"{within.n} pairs, and processes of {places.size}")
    logs = np.log(np.asarray(method_ns, float) / np.asarray(base_ns, float))
    medians = np.array([np.median(logs[places == one]) for one in np.unique(places)])
    if len(medians) < 2:
        return Shared(within, 1, None)
    centre, error = float(medians.mean()), float(medians.std(ddof=1)) / math.sqrt(len(medians))
    df = len(medians) - 1
    reach = t_quantile(df) * error
    p = max(within.p, t_p(abs(centre) / error, df) if error else float(not centre))
    agree = centre * (within.ratio - 1) > 0
    ratio = stats.Ratio(
        math.exp(centre),
        min(within.ci_lo, math.exp(centre - reach)),
        max(within.ci_hi, math.exp(centre + reach)),
        p if agree else 1.0,
        within.n,
    )
    return Shared(ratio, len(medians), math.expm1(float(medians.std(ddof=1))) * 100)


def t_p(t: float, df: int) -> float:
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


def t_quantile(df: int, alpha: float = 0.05) -> float:
    """The t whose two-sided p-value is `alpha`."""
    low, high = 0.0, 1e6
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p(middle, df) > alpha else (low, middle)
    return high
