"""Figures that the papers print, as ratios to their vanilla: only these can be compared with
measurements on another machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from bench.request import plugins
from reports.papers import printed
from reports.papers.definitions import load_definitions


class PublishedRatio(NamedTuple):
    """A printed number divided by its vanilla's; `length` is None if it isn't stated. `label` is
    the name in figures of the rows that measure its method here."""

    method: str
    label: str
    size: str
    task: str
    length: int | None
    value: float


def ratios(paper: str, table: str, metric: str, base: str = "vanilla") -> Iterator[PublishedRatio]:
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
            yield PublishedRatio(
                cell.method, label, cell.model_size, cell.task, cell.length, cell.value / below
            )


def vcc_encoder() -> list[tuple[int, float]]:
    """(length, VCC's encoder time / T5's): VCC Table 2, base size, the median of its tasks."""
    found: dict[int, list[float]] = {}
    for cell in ratios("vcc", "Table 2", "runtime_encoder_ms", "t5"):
        if cell.method == "vcc" and cell.size == "base" and cell.length:
            found.setdefault(cell.length, []).append(cell.value)
    return [(length, statistics.median(values)) for length, values in sorted(found.items())]
