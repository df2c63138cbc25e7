"""Figures that the papers print, as ratios to their vanilla: the only ones that can stand beside a
measurement of another machine."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "published"


class Cell(NamedTuple):
    """One printed number; `length` is None where none is stated."""

    table: str
    method: str
    size: str
    length: int | None
    task: str
    metric: str
    value: float
    extra: dict[str, Any]


@cache
def cells(paper: str) -> tuple[Cell, ...]:
    """The cells of a paper; none where its file isn't there."""
    path = FOLDER / f"{paper}.csv"
    if not path.is_file():
        return ()
    with path.open(newline="") as file:
        return tuple(
            Cell(
                line["table"], line["method"], line["model_size"],
                int(line["length"]) if line["length"] else None, line["task"], line["metric"],
                float(line["value"]), json.loads(line["extra"] or "{}"),
            )
            for line in csv.DictReader(file)
        )  # fmt: skip


def ratios(paper: str, table: str, metric: str, base: str = "vanilla") -> Iterator[Cell]:
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
