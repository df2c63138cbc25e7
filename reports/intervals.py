"""A measured figure with its interval, and its text."""

from __future__ import annotations

import math
from typing import NamedTuple

from reports.wording import AT_CHANCE

Z = 1.959964


class Measured(NamedTuple):
    """A figure and its 95 % interval; the ends are None without an interval. `n` is the number of
    samples or pairs; None for a figure that is measured once, such as memory."""

    value: float
    lo: float | None
    hi: float | None
    n: int | None = None


def bounded_mean(value: float, n: int) -> Measured:
    """A mean of `n` scores in 0…100 whose spread wasn't stored, with the widest possible interval:
    Wilson's, for scores that are all 0 or 100."""
    p, z2 = min(max(value / 100, 0.0), 1.0), Z * Z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Measured(value, max(0.0, 100 * (centre - half)), min(100.0, 100 * (centre + half)), n)


def mean(parts: list[Measured]) -> Measured:
    """The mean of independent scores."""
    value = sum(part.value for part in parts) / len(parts)
    if any(part.lo is None or part.hi is None for part in parts):
        return Measured(value, None, None)
    below = math.hypot(*(part.value - (part.lo or 0.0) for part in parts)) / len(parts)
    above = math.hypot(*((part.hi or 0.0) - part.value for part in parts)) / len(parts)
    return Measured(value, value - below, value + above, sum(part.n or 0 for part in parts))


def rounded(value: float, is_ratio: bool) -> str:
    """A score rounded to tenths of a point, or a ratio rounded to thousandths."""
    return f"×{value:.3f}" if is_ratio else f"{value:.1f}"


def interval(
    measured: Measured | None, is_ratio: bool, at_chance: bool = False, comparison: str = ""
) -> str:
    """A figure with its interval; for a comparison with vanilla's score, also the weights of
    both."""
    if measured is None:
        return ""
    text = rounded(measured.value, is_ratio) + (AT_CHANCE if at_chance else "")
    beside = f", {comparison}" if comparison else ""
    if measured.lo is None or measured.hi is None:
        return text + beside
    lo, hi = (
        "∞" if math.isinf(end) else rounded(end, is_ratio).lstrip("×")
        for end in (measured.lo, measured.hi)
    )
    return f"{text} ({lo} … {hi}){beside}"
