"""Fidelity against speed: the distance of a method's output from exact attention's, and its
cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from reports.figures import captions, sheet, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows, interval, records, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 1e-5
"""Below it an error is that of a number format, not of a method."""


@figure(
    "fidelity_speed",
    "output error against latency",
    "methods with an output error and a ratio",
)
def speed(rows: FigureRows, most: int) -> sheet.Plot | None:
    known = rows.cells[rows.cells["fid_rel_l2"].gt(ROUNDING) & rows.cells["lat_ratio"].gt(0)]
    some = replace(rows, cells=known).settings("length")
    if not some:
        return None
    drawn = spread(some, most)
    rows = rows.emphasised(drawn)
    panels = [captions.panel(p, partial(paint, rows, p), "length") for p in drawn]
    note = (
        "Error: relative L2 distance of the last hidden states from exact attention's, same "
        "weights and input; below 1e-5 it is rounding, and not drawn. Bars: 95 % intervals; an "
        "arrow where one goes on."
    )
    return sheet.Plot(panels, 2, 2.1, captions.legend(rows, drawn), note, len(some) - len(drawn))


def paint(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    labels: list[sheet.Label] = []
    sheet.parity(axes, "x")
    low, high = panel["lat_ratio"].min(), max(panel["lat_ratio"].max(), 1.0)
    room = (high / low) ** 0.12 * 1.15
    limits = (low / room, high * room)
    for name, label, cells in rows.arms(panel):
        look = rows.looks[name]
        for cell in records(cells):
            place = (cell.lat_ratio, cell.fid_rel_l2)
            ratio = interval(cell, "lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi")
            sheet.bar(axes, (ratio.lo, ratio.hi), cell.fid_rel_l2, limits, color=look.color)
            sheet.points(axes, *place, look, zorder=2)
            labels += [(label, *place)] if label else []
    ticks.log_axis(axes, "x", *limits)
    error = panel["fid_rel_l2"]
    ticks.log_axis(axes, "y", error.min() / 1.5, error.max() * 1.5)
    axes.set_xlabel("latency / vanilla's")
    axes.set_ylabel("output error")
    return labels
