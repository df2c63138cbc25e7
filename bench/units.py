"""Durations, amounts of memory, numbers of things and scores as text."""

from __future__ import annotations

import math
from typing import Any


def span(seconds: float) -> str:
    """Text such as 40 s, 12 min, 3 h 20 min or 4 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{round(hours / 24)} days"


def counted(number: int | None, noun: str) -> str:
    """Text such as 1 cell, 1,200 cells or, if the number is unknown, – cells."""
    if number is None:
        return f"– {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def memory(amount_bytes: int) -> str:
    """Text such as 470 MiB or 3.2 GiB."""
    mib = amount_bytes / 2**20
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"


def score_digits(higher_is_better: bool | None) -> int:
    """Digits after the point: 1 for a score of 0 to 100, 3 for a loss, such as nats per token."""
    return 3 if higher_is_better is False else 1


def ms(ns: float | None, style: str = ",.1f") -> str:
    return f"{ns / 1e6:{style}}" if ns else "–"


def mib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**20:,.1f}"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"×{ratio:.3f}"


def within(
    value: float | None, lo: float | None = None, hi: float | None = None, style: str = ".1f"
) -> str:
    """A value with its interval, whose upper end may be infinite."""
    if value is None:
        return "–"
    if lo is None or hi is None:
        return f"{value:{style}}"
    top = "∞" if math.isinf(hi) else f"{hi:{style}}"
    return f"{value:{style}} ({lo:{style}} … {top})"


def finite(value: Any) -> Any:
    """The value with None in place of NaN and the infinities, also inside lists and objects: JSON
    doesn't support them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value
