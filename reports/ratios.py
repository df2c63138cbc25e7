"""A row's two latency ratios as text: to vanilla, and to exact attention by the same engine."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context

from bench.rows.comparison import Comparison
from bench.rows.row_facts import engine_only, faster_as_good, kernel_names
from bench.units import counted
from reports.rendering import Strong
from reports.rows import Row
from reports.wording import NONE

FEW_PAIRS = 5
"""Of fewer pairs a ratio has two significant figures, and the number of pairs next to it."""


def to_vanilla(row: Row, digits: int = 3) -> str:
    """The ratio and its verdict, with a remark if only the engine explains it; bold if it is a
    speed-up at vanilla's quality."""
    latency = Comparison.of(row, "lat")
    if latency.ratio is None:
        return NONE
    words = (f"×{latency.ratio:.{digits}f}", latency.verdict, engine_only(row))
    return emphasised(row, " ".join(filter(None, words)))


def rounded(ratio: float, pairs: int | None = None) -> str:
    """A ratio of three decimals with three significant figures: 0.493, 1.05, 125; for one pair 120
    (1 pair). A half is rounded up, as in the page's script."""
    few = counted(pairs, "pair") if pairs is not None and pairs < FEW_PAIRS else ""
    digits = 2 if few else 3
    rounding = Context(prec=digits, rounding=ROUND_HALF_UP)
    value = float(rounding.create_decimal_from_float(round(ratio, 3)))
    decimals = digits - 1 - math.floor(math.log10(value)) if value > 0 else 0
    text = f"{value:.{max(0, decimals)}f}"
    return f"{text} ({few})" if few else text


def emphasised(row: Row, text: str) -> str:
    """A text about a row's latency, bold if it is a speed-up at vanilla's quality."""
    return Strong(text) if faster_as_good(row) else text


def to_same_engine(row: Row, digits: int = 3) -> str:
    engine = Comparison.of(row, "engine")
    if engine.ratio is None:
        return NONE
    return " ".join(filter(None, (f"×{engine.ratio:.{digits}f}", engine.verdict)))


def kernel(row: Row) -> str:
    return kernel_names(row["kernel"]) or NONE
