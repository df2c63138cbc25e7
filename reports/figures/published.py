"""Figures that the papers print, as ratios to their vanilla: the only ones that can stand beside a
measurement of another machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from bench.request import plugins
from reports.papers import printed
from reports.papers.definitions import load_definitions


class PublishedFigure(NamedTuple):
    """One printed number; `length` is None where none is stated. `label` is what figures call the
    rows that measure its method here."""

    table: str
    method: str
    label: str
    size: str
    length: int | None
    task: str
    metric: str
    value: float


def cells(paper: str) -> list[PublishedFigure]:
    """The numbers of a paper."""
    methods = load_definitions([paper])[0].methods
    labels = {
        name: plugins.method_label(method.method, method.params) or name
        for name, method in methods.items()
    }
    return [
        PublishedFigure(
            c.table, c.method, labels.get(c.method, c.method), c.model_size, c.length, c.task,
            c.metric, c.value,
        )
        for c in printed.load_printed(paper)
        if c.value is not None
    ]  # fmt: skip


def ratios(paper: str, table: str, metric: str, base: str = "vanilla") -> Iterator[PublishedFigure]:
    """The cells of a table, each divided by `base`'s of the same task, size and length."""
    some = [cell for cell in cells(paper) if cell.table == table and cell.metric == metric]
    bases = {(c.task, c.size, c.length): c.value for c in some if c.method == base}
    for cell in some:
        below = bases.get((cell.task, cell.size, cell.length))
        if below and cell.method != base:
            yield cell._replace(value=cell.value / below)


def vcc_encoder(size: str = "base") -> list[tuple[int, float]]:
    """(length, VCC's encoder time / T5's): VCC Table 2, the median of its tasks."""
    found: dict[int, list[float]] = {}
    for cell in ratios("vcc", "Table 2", "runtime_encoder_ms", "t5"):
        if cell.method == "vcc" and cell.size == size and cell.length:
            found.setdefault(cell.length, []).append(cell.value)
    return [(length, statistics.median(values)) for length, values in sorted(found.items())]
