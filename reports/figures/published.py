"""Figures that the papers print, as ratios to their vanilla: only these can be compared with
measurements on another machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.request import plugins
from reports.papers import printed
from reports.papers.definitions import load_definitions

Ratio = tuple[str, printed.Printed, float]
"""The name in figures of the rows that measure a cell's method here; the cell; the cell / that of
its vanilla."""


def ratios(paper: str, table: str, metric: str, base: str = "vanilla") -> Iterator[Ratio]:
    """The cells of a table, each divided by the cell of `base` with the same task, size and
    length."""
    methods = load_definitions([paper])[0].methods
    cells = [c for c in printed.load_printed(paper) if (c.table, c.metric) == (table, metric)]
    bases = {(c.task, c.model_size, c.length): c.value for c in cells if c.method == base}
    for cell in cells:
        below = bases.get((cell.task, cell.model_size, cell.length))
        if below and cell.value is not None and cell.method != base:
            own = methods.get(cell.method)
            label = (own and plugins.method_label(own.method, own.params)) or cell.method
            yield label, cell, cell.value / below


def vcc_encoder() -> list[tuple[int, float]]:
    """(length, VCC's encoder time / T5's): VCC Table 2, base size, the median of its tasks."""
    found: dict[int, list[float]] = {}
    for _, cell, ratio in ratios("vcc", "Table 2", "runtime_encoder_ms", "t5"):
        if cell.method == "vcc" and cell.model_size == "base" and cell.length:
            found.setdefault(cell.length, []).append(ratio)
    return [(length, statistics.median(values)) for length, values in sorted(found.items())]
