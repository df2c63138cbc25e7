"""Axes whose ticks are plain numbers: costs on a log scale, lengths in tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = (
    tuple(1 + i / 10 for i in range(90)), tuple(1 + i / 5 for i in range(45)),
    (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,),
)  # fmt: skip
MOST_TICKS = 6


def log_axis(axes: Axes, side: str, low: float, high: float) -> None:
    """Makes the axis `side` (x or y) logarithmic between these limits. Its ticks are few
    plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks: list[float] = []
    for steps in STEPS:
        ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(ticks) <= MOST_TICKS:
            break
    axes.set(**{f"{side}scale": "log", f"{side}lim": (low, high)})
    axis = getattr(axes, f"{side}axis")
    axis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // (MOST_TICKS + 1)) or 1]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: style.number(value)))
    axis.set_minor_locator(FixedLocator([s * 10.0**d for d in decades for s in range(1, 10)]))
    axis.set_minor_formatter(NullFormatter())


def length_axis(axes: Axes, lengths: Iterable[float]) -> None:
    """Makes a log axis of tokens, with the measured lengths as ticks (only some if there are
    many)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    apart: list[float] = []
    width = max(1.0, ticks[-1] / ticks[0]) ** (1 / 7)
    for tick in ticks[::-1]:
        if not apart or tick * max(width, 1.02) <= apart[-1] * 1.0001:
            apart.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(apart))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: thousands(v)))
    axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
    axes.set_xlabel("length, tokens")


def score_axis(axes: Axes, percent: bool) -> None:
    """Makes a scale of scores with room around them, no ticks above 100 %, and a least range, so
    that a difference of one point doesn't fill it."""
    axes.margins(y=0.12)
    if percent:
        low, high = axes.get_ylim()
        low = min(low, high - 6.0, 100 - 6.0)
        axes.set_ylim(low, min(high, 100 + 0.05 * (100 - low)))


def thousands(length: float) -> str:
    """512, 4K (of 1,024), 100k (of 1,000)."""
    whole = round(length)
    if whole >= 1024 and whole % 1024 == 0:
        return f"{whole // 1024:,}K"
    if whole >= 10_000 and whole % 1000 == 0:
        return f"{whole // 1000:,}k"
    return f"{whole:,}"
