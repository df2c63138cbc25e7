"""Paired ratios, of one process and of several, their intervals and verdicts.

Times are integer nanoseconds, ratios are method / vanilla (below 1 is better), effects are percent.
Functions that draw at random take a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.status import Verdict

Floats = NDArray[np.float64]

FLIPS = 9_999
ALPHA = 0.05
SAME_PCT = 2.0
"""Percent: a smaller effect is of no practical use, even if it is significant."""
MIN_AA_PAIRS = 5
BISECTIONS, T_BISECTIONS = 24, 60
SUBSAMPLES = 999
LEAST_SAMPLES = {10: 64, 90: 64, 99: 662}
SCALE = 100.0
"""Scores lie in 0…100."""
ASSUMED_SD_PCT = 10.0
"""The assumed standard deviation between processes if only one was timed, in percent. Among 29
quick cells of 64 to 2,048 tokens that four processes timed on a virtual machine with two cores
(Intel Xeon), 26 had at most this deviation; their median was 3.9 %, the largest 21 %."""


class Ratio(NamedTuple):
    """method / vanilla over `n` pairs. An end of the interval without a bound is 0 or infinity."""

    ratio: float
    ci_lo: float
    ci_hi: float
    p: float
    n: int

    @property
    def inverse(self) -> Ratio:
        """vanilla / method."""
        hi = 1 / self.ci_lo if self.ci_lo else math.inf
        return self._replace(ratio=1 / self.ratio, ci_lo=1 / self.ci_hi, ci_hi=hi)


class Summary(NamedTuple):
    """One arm's samples, in integer nanoseconds; None for a percentile that needs more samples."""

    median_ns: int
    p10_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    mad_ns: int
    min_ns: int


def paired_ratio(method_ns: ArrayLike, base_ns: ArrayLike, seed: int = 0) -> Ratio:
    """The median paired ratio, its sign-flip p-value, and the interval that inverts that test.

    `method_ns[i]` and `base_ns[i]` are one pair, timed one after the other in an order drawn at
    random, which makes flipping the sign of a pair's log ratio a valid test for any noise
    between pairs. Fewer than ten pairs reject nothing at 95 %: their interval is (0, inf) and
    their verdict undecided.

    Raises ValueError when the two differ in length, are empty, or hold a time that isn't positive.
    """
    logs = _log_ratios(method_ns, base_ns)
    centre = float(np.median(logs))
    keeps = _flips(len(logs), seed)
    reach = 1.0 + 4.0 * float(np.ptp(logs))
    lo, hi = (_end(logs, keeps, centre, side * reach) for side in (-1.0, 1.0))
    return Ratio(math.exp(centre), math.exp(lo), math.exp(hi), _p_value(logs, keeps), len(logs))


def _log_ratios(method_ns: ArrayLike, base_ns: ArrayLike) -> Floats:
    method, base = np.asarray(method_ns, float), np.asarray(base_ns, float)
    if method.shape != base.shape or method.ndim != 1 or not len(method):
        raise ValueError(f"pairs need two equal columns, got {method.shape} and {base.shape}")
    if not (np.all(method > 0) and np.all(base > 0)):
        raise ValueError("a paired ratio needs positive times")
    return cast(Floats, np.log(method / base))


@lru_cache(maxsize=8)
def _flips(n: int, seed: int) -> Floats:
    """[FLIPS, n]: 1 where a flip keeps the sign of a pair's log ratio, 0 where it changes it."""
    return np.random.default_rng(seed).integers(0, 2, size=(FLIPS, n)).astype(float)


def _p_value(logs: Floats, keeps: Floats) -> float:
    """Share of flips whose median is as far from 0 as the one observed.

    A median lies beyond ±d when more than half of the values do; one product counts these for all
    flips. If exactly half do, the two middle values decide.
    """
    n = len(logs)
    logs = logs * np.linspace(1, 1 + 1e-9, n)  # no two values are equal
    distance = abs(float(np.median(logs))) * (1 - 1e-12)
    above, below = logs >= distance, logs <= -distance
    # Not `@`: for a product this small, BLAS threads on a busy machine are slower than one.
    kept = np.einsum("fn,n->f", keeps, above.astype(float) - below)
    beyond = np.maximum(kept + below.sum(), above.sum() - kept)
    count = np.count_nonzero(beyond > n / 2)
    if n % 2 == 0:
        even = np.sort((2 * keeps[beyond == n / 2] - 1) * logs, axis=1)
        middle = (even[:, n // 2 - 1] + even[:, n // 2]) / 2
        count += np.count_nonzero(np.abs(middle) >= distance)
    return float(1 + count) / (1 + FLIPS)


def _end(logs: Floats, keeps: Floats, centre: float, reach: float) -> float:
    """The end of the interval on the side of `reach`: the farthest value that isn't rejected."""
    if _p_value(logs - (centre + reach), keeps) > ALPHA:
        return math.copysign(math.inf, reach)
    kept, rejected = 0.0, reach
    for _ in range(BISECTIONS):
        middle = (kept + rejected) / 2
        if _p_value(logs - (centre + middle), keeps) > ALPHA:
            kept = middle
        else:
            rejected = middle
    return centre + rejected  # the outer end of the last bracket: conservative


def verdict(ratio: Ratio, resolution_pct: float | None = SAME_PCT) -> Verdict:
    """The verdict on a ratio on a host that resolves effects of `resolution_pct`.

    faster/slower: the interval excludes 1 and the effect is above 2 % and above the resolution.
    same: the whole interval lies within ±2 %, on a host that resolves 2 %. Otherwise undecided.
    With `None`, an unknown resolution, the verdict can be faster or slower, but not same.
    """
    effect_pct = abs(ratio.ratio - 1) * 100
    if not ratio.ci_lo <= 1 <= ratio.ci_hi and effect_pct > max(SAME_PCT, resolution_pct or 0.0):
        return Verdict.SLOWER if ratio.ratio > 1 else Verdict.FASTER
    within = ratio.ci_lo >= 1 - SAME_PCT / 100 and ratio.ci_hi <= 1 + SAME_PCT / 100
    if within and resolution_pct is not None and resolution_pct <= SAME_PCT:
        return Verdict.SAME
    return Verdict.UNDECIDED


def ratio_of_ratios(a: Ratio, b: Ratio) -> Ratio:
    """b / a of two ratios, each measured against vanilla in a separate process.

    Each end combines the two 95 % intervals as independent errors (Zou and Donner 2008, Statistics
    in Medicine 27); an interval (0, inf) makes the result (0, inf). p is that of the normal
    distribution with this interval, below 0.05 exactly when the interval excludes 1, and no
    smaller than the smallest p of a sign-flip test. `n` is the smaller number of pairs.
    """
    (a_mid, a_lo, a_hi), (b_mid, b_lo, b_hi) = (
        [math.log(end) if end > 0 else -math.inf for end in ratio[:3]] for ratio in (a, b)
    )
    centre = b_mid - a_mid
    below, above = math.hypot(b_mid - b_lo, a_hi - a_mid), math.hypot(b_hi - b_mid, a_mid - a_lo)
    towards_0 = below if centre > 0 else above
    distance = abs(centre) / towards_0 if towards_0 else math.copysign(math.inf, abs(centre))
    p = math.erfc(distance * NormalDist().inv_cdf(0.975) / math.sqrt(2)) if centre else 1.0
    ratio, lo, hi = (math.exp(end) for end in (centre, centre - below, centre + above))
    return Ratio(ratio, lo, hi, max(p, 1 / (1 + FLIPS)), min(a.n, b.n))


def aa_noise_pct(
    first_ns: ArrayLike, second_ns: ArrayLike, size: int, seed: int = 0
) -> float | None:
    """The error of a median ratio of `size` pairs on this host, in percent: its 90th percentile.

    Both columns are vanilla; sub-samples are drawn with replacement, sides swapped at random. None
    when there are fewer than five pairs to draw from.
    """
    draws = _aa_draws(first_ns, second_ns, size, SUBSAMPLES, seed)
    if draws is None:
        return None
    error = np.abs(np.expm1(np.median(draws, axis=1)))
    return float(np.percentile(error, 90) * 100)


def detectable_pct(first_ns: ArrayLike, second_ns: ArrayLike, pairs: int) -> float | None:
    """The smallest slow-down, in percent, that `pairs` pairs detect with probability 0.8: inf when
    they detect none, None when there are too few pairs to draw from."""
    draws = _aa_draws(first_ns, second_ns, pairs, 40, seed=0)
    noise_pct = aa_noise_pct(first_ns, second_ns, pairs)
    if draws is None or noise_pct is None:
        return None
    least = math.log1p(max(SAME_PCT, noise_pct) / 100)
    needed = []
    for draw in draws:
        # A slow-down by d shifts the whole interval by log(1 + d), so no values need to be tried.
        ratio = paired_ratio(np.exp(draw), np.ones(pairs))
        above_one = -math.log(ratio.ci_lo) if ratio.ci_lo > 0 else math.inf
        needed.append(max(above_one, least - math.log(ratio.ratio)))
    return float(np.expm1(np.quantile(needed, 0.8, method="higher")) * 100)


def _aa_draws(
    first_ns: ArrayLike, second_ns: ArrayLike, size: int, draws: int, seed: int
) -> Floats | None:
    """Log ratios [draws, size] of equal arms, or None when there are too few pairs."""
    if size < 1 or np.size(first_ns) < MIN_AA_PAIRS:
        return None
    logs = _log_ratios(first_ns, second_ns)
    random = np.random.default_rng(seed)
    return cast(
        Floats, random.choice(logs, (draws, size)) * random.choice((-1.0, 1.0), (draws, size))
    )


def summary(samples_ns: ArrayLike) -> Summary:
    """Median, 10th, 90th and 99th percentile, median absolute deviation and minimum.

    Percentiles need the number of samples of MLPerf Inference's early stopping. Raises ValueError
    when there is no sample."""
    samples = np.asarray(samples_ns, float)
    if not samples.size:
        raise ValueError("no samples to summarise")
    median = np.median(samples)
    mad = np.median(np.abs(samples - median))
    p10, p90, p99 = (
        round(float(np.percentile(samples, at))) if samples.size >= least else None
        for at, least in LEAST_SAMPLES.items()
    )
    middle, spread, least_ns = (round(float(x)) for x in (median, mad, samples.min()))
    return Summary(middle, p10, p90, p99, spread, least_ns)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the given order; they bound the family-wise error rate."""
    adjusted = [1.0] * len(pvalues)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(pvalues)), key=lambda i: pvalues[i])):
        highest = max(highest, min(1.0, (len(pvalues) - rank) * pvalues[index]))
        adjusted[index] = highest
    return adjusted


# The ratio of pairs that were timed in several processes, with the process as the unit.
#
# All pairs of a process share its memory layout and the state of the machine, so more pairs don't
# predict the next process. Student's t over the processes' median paired log ratios gives the
# interval, which is valid for any share of the variance between processes. One process can't show
# this share: its interval is widened by the assumed deviation between processes.

Timed = tuple[ArrayLike, ArrayLike]
"""Times, and the number of the round of each."""


class ProcessRatio(NamedTuple):
    """A ratio, the number of processes in which its pairs were timed, and the standard deviation of
    their ratios in percent, None for one process."""

    ratio: Ratio
    processes: int
    sd_pct: float | None


def ratio_over_processes(
    method_ns: ArrayLike,
    base_ns: ArrayLike,
    process: ArrayLike | None = None,
    seed: int = 0,
) -> ProcessRatio:
    """The ratio of pairs, where pair i was timed in process `process[i]`; None: all in one process.

    The ratio of several processes is the geometric mean of their median paired ratios. Its interval
    is the hull of the t interval over processes and the interval of all pairs, its p the larger of
    the two. One process is one draw of a normal distribution with ASSUMED_SD_PCT.
    Raises ValueError as `paired_ratio` does, and when `process` has another length.
    """
    within = paired_ratio(method_ns, base_ns, seed)
    places = np.zeros(within.n) if process is None else np.asarray(process)
    if places.shape != (within.n,):
        raise ValueError(f"{within.n} pairs, and processes of {places.size}")
    logs = _log_ratios(method_ns, base_ns)
    medians = np.array([np.median(logs[places == one]) for one in np.unique(places)])
    if len(medians) < 2:
        # Another process would differ by a factor; the two errors are independent.
        factor = (1 + ASSUMED_SD_PCT / 100) ** NormalDist().inv_cdf(0.975)
        both = ratio_of_ratios(Ratio(1.0, 1 / factor, factor, 1.0, within.n), within)
        return ProcessRatio(both._replace(p=max(both.p, within.p)), 1, None)
    across = _of_draws(medians)
    agree = (across.ratio - 1) * (within.ratio - 1) > 0
    ratio = across._replace(
        ci_lo=min(within.ci_lo, across.ci_lo),
        ci_hi=max(within.ci_hi, across.ci_hi),
        p=max(within.p, across.p) if agree else 1.0,
        n=within.n,
    )
    return ProcessRatio(ratio, len(medians), math.expm1(float(medians.std(ddof=1))) * 100)


def ratio_of_rounds(above: Sequence[Timed], below: Sequence[Timed]) -> Ratio:
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


def _of_draws(logs: Floats) -> Ratio:
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
    return Ratio(ratio, lo, hi, p, count)


def widened(ratio: Ratio, value: float) -> Ratio:
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
    for _ in range(T_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, df) > ALPHA else (low, middle)
    return high
