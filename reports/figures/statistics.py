"""Fronts, exponents, predictions and crossovers of points and curves: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bench.statistics.paired import student_t_quantile

Standing = Literal["front", "open", "dominated"]


class Interval(NamedTuple):
    """A figure and the two ends of its 95 % interval; the ends are infinite if it has none."""

    value: float
    lo: float
    hi: float


class ParetoPoint(NamedTuple):
    """A smaller `cost` and a larger `gain` are better."""

    cost: Interval
    gain: Interval


def standings(points: Sequence[ParetoPoint]) -> list[Standing]:
    """The standing of each point against the others.

    dominated  another point is significantly cheaper and better
    open       another is cheaper and no worse, or better and no more expensive, but not
               significantly
    front      neither holds for any other point
    """
    places: list[Standing] = []
    for one in points:
        others = [other for other in points if other is not one]
        dominated = any(
            significantly_less(o.cost, one.cost) and significantly_less(one.gain, o.gain)
            for o in others
        )
        places.append("dominated" if dominated else "open" if _beaten(one, others) else "front")
    return places


def _beaten(one: ParetoPoint, others: Sequence[ParetoPoint]) -> bool:
    return any(
        o.cost.value <= one.cost.value
        and o.gain.value >= one.gain.value
        and (o.cost.value, o.gain.value) != (one.cost.value, one.gain.value)
        for o in others
    )


def significantly_less(a: Interval, b: Interval) -> bool:
    """Whether the 95 % interval of b − a is above 0.

    The two intervals are combined like independent errors (Zou and Donner 2008, Statistics in
    Medicine 27), which is less strict than requiring that they don't overlap, at the same level.
    """
    distance = b.value - a.value
    return distance > 0 and distance > math.hypot(b.value - b.lo, a.hi - a.value)


class PowerLaw(NamedTuple):
    """cost = exp(log_scale) · length^exponent, and the 95 % interval of the exponent."""

    exponent: float
    lo: float
    hi: float
    log_scale: float

    def at(self, length: float) -> float:
        return math.exp(self.log_scale + self.exponent * math.log(length))


def power_law(lengths: ArrayLike, costs: ArrayLike) -> PowerLaw | None:
    """Least squares on logarithms, with any number of points for each length; Student's interval.

    None for fewer than three lengths, since two leave no residual from which to estimate the error.
    Raises ValueError for columns that differ in length or contain numbers that aren't positive.
    """
    x, y = _logs(lengths, costs)
    if len(np.unique(x)) < 3:
        return None
    (slope, level), covariance = np.polyfit(x, y, 1, cov=True)
    reach = student_t_quantile(len(x) - 2) * math.sqrt(covariance[0, 0])
    return PowerLaw(slope, slope - reach, slope + reach, level)


class HeldOut(NamedTuple):
    """The longest length, predicted from the shorter ones.

    predicted  its predicted cost, with the 95 % interval lo … hi
    measured   geometric mean of its measured costs
    law        the power law through the shorter lengths
    """

    length: float
    measured: float
    predicted: float
    lo: float
    hi: float
    law: PowerLaw

    @property
    def error_pct(self) -> float:
        """How far, in percent, the prediction is above (+) or below (−) the measurement."""
        return (self.predicted / self.measured - 1) * 100


def held_out(lengths: ArrayLike, costs: ArrayLike) -> HeldOut | None:
    """The longest length predicted by a power law through all the others; None if these are fewer
    than three. Raises ValueError like `power_law`."""
    x, y = _logs(lengths, costs)
    if not len(x):
        return None
    last = x == x.max()
    law = power_law(np.exp(x[~last]), np.exp(y[~last]))
    if law is None:
        return None
    known, rest = x[~last], y[~last] - law.log_scale - law.exponent * x[~last]
    n, at = len(known), float(x.max())
    variance = float(rest @ rest) / (n - 2)
    spread = float(np.square(known - known.mean()).sum())
    away = (at - float(known.mean())) ** 2 / spread
    reach = student_t_quantile(n - 2) * math.sqrt(variance * (1 / int(last.sum()) + 1 / n + away))
    centre = law.log_scale + law.exponent * at
    low, high = (math.exp(min(centre + side * reach, 700.0)) for side in (-1, 1))
    measured = math.exp(float(y[last].mean()))
    return HeldOut(math.exp(at), measured, math.exp(centre), low, high, law)


def _logs(lengths: ArrayLike, costs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(lengths, float), np.asarray(costs, float)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"a fit needs two equal columns, got {x.shape} and {y.shape}")
    if not (np.all(x > 0) and np.all(y > 0)):
        raise ValueError("a power law needs positive lengths and costs")
    return np.log(x), np.log(y)


def crossover(lengths: Sequence[float], ratios: Sequence[Interval]) -> Interval | None:
    """The length from which a curve of ratios to vanilla stays below 1, on a line between the
    logarithms of the two lengths around it. The ends of the interval are the crossovers of the
    curves of the ratios' lower and upper ends: 0 if it may be below the shortest length, infinity
    if it may be above the longest. Lengths must rise and be distinct.

    None if the ratio at the longest length isn't below 1.
    """
    ends = [_last_crossing(lengths, [r[end] for r in ratios]) for end in range(3)]
    return None if math.isinf(ends[0]) else Interval(*ends)


def _last_crossing(lengths: Sequence[float], ratios: Sequence[float]) -> float:
    if not ratios or ratios[-1] >= 1:
        return math.inf
    above = [i for i, ratio in enumerate(ratios) if ratio >= 1]
    if not above:
        return 0.0
    i = above[-1]
    if math.isinf(ratios[i]) or ratios[i + 1] <= 0:  # no slope to follow: the outer length
        return float(lengths[i + 1] if math.isinf(ratios[i]) else lengths[i])
    x = [math.log(lengths[j]) for j in (i, i + 1)]
    y = [math.log(ratios[j]) for j in (i, i + 1)]
    return math.exp(x[0] + (x[1] - x[0]) * y[0] / (y[0] - y[1]))
