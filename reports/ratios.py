"""A row's two latency ratios as text: to vanilla, and to exact attention by the same engine."""

from __future__ import annotations

from bench.store.engine import engine_only, kernel_names
from bench.store.quality_verdict import faster_as_good
from reports.rendering import Strong
from reports.rows import Row

NONE = "–"


def to_vanilla(row: Row, digits: int = 3) -> str:
    """The ratio and its verdict, with a word where the engine alone explains it; bold where it is a
    speed-up at vanilla's quality."""
    if row["ratio"] is None:
        return NONE
    words = (f"×{row['ratio']:.{digits}f}", row["verdict"], engine_only(row))
    return emphasised(row, " ".join(filter(None, words)))


def emphasised(row: Row, text: str) -> str:
    """A text about a row's latency, bold where it is a speed-up at vanilla's quality."""
    return Strong(text) if faster_as_good(row) else text


def to_same_engine(row: Row, digits: int = 3) -> str:
    if row["ratio_same_engine"] is None:
        return NONE
    words = (f"×{row['ratio_same_engine']:.{digits}f}", row["ratio_same_engine_verdict"])
    return " ".join(filter(None, words))


def kernel(row: Row) -> str:
    return kernel_names(row["kernel"]) or NONE
