"""VCC's Figure 1: latency and memory as the input grows, and their ratios to vanilla's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from reports.figures import captions, published, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows
from reports.figures.costs import LATENCY, MEMORY, Cost
from reports.figures.kinds import by_length
from reports.looks import VANILLA
from reports.papers.measured import UNFUSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@figure(
    "vcc_1",
    "VCC Fig. 1: latency and memory as the input grows",
    "one method at two lengths or more, in one setting",
)
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
    """One row of three panels for each setting; by default only the setting with the most
    methods."""
    measured = replace(rows, cells=rows.cells[rows.cells["lat_median_ns"].gt(0)])
    some = by_length.at_lengths(measured, LATENCY)
    some = sorted(some, key=lambda p: p["batch"].iloc[0] != 1)
    drawn = some[: max(1, most // 3)] if some else []
    if not drawn:
        return None
    rows = rows.emphasised(drawn)
    paints = (
        partial(paint, rows, LATENCY),
        partial(paint, rows, MEMORY),
        partial(paint_ratio, rows),
    )
    panels = [captions.panel(p, partial(draw, p)) for p in drawn for draw in paints]
    known = [by_length.curves(rows, panel, LATENCY) for panel in drawn]
    legend = captions.legend(rows, [curve.cells for curves in known for curve in curves])
    note = (
        "Both costs on linear axes, as in the paper. Bars: 95 % intervals; a hollow ratio has none."
    )
    if any(UNFUSED in set(panel["method"]) for panel in drawn):
        legend.append((sheet.mark(None, style.PUBLISHED), "published"))
        note += (
            " Published: VCC Table 2, encoder of T5-base, one A100, × what unfused attention takes "
            "here of fused."
        )
    return sheet.Plot(panels, 3, 1.9, legend, note, len(some) - len(drawn))


def paint(rows: FigureRows, cost: Cost, panel: pd.DataFrame, axes: Axes) -> None:
    for curve in by_length.curves(rows, panel, cost):
        look, mean = rows.looks[curve.method], curve.mean
        sheet.points(axes, mean.index, mean, look, linestyle=curve.line, zorder=2)
    ticks.length_axis(axes, by_length.reached(panel, cost))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_ylabel(f"{cost.label}, {cost.unit}")


def paint_ratio(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> None:
    sheet.parity(axes, "y")
    ends = [1.0]
    unfused: dict[Any, float] = {}
    for curve in by_length.curves(rows, panel, LATENCY):
        cells = curve.cells[curve.cells["lat_ratio"].gt(0)]
        if curve.method == VANILLA or cells.empty:
            continue
        look = rows.looks[curve.method]
        mean = by_length.means(cells, "lat_ratio")
        if curve.method == UNFUSED:
            unfused = mean.to_dict()
        axes.plot(mean.index, mean, linestyle=curve.line, color=look.color)
        bounded = cells["lat_ratio_ci_lo"].gt(0) & cells["lat_ratio_ci_hi"].lt(float("inf"))
        # A ratio without an interval is uncertain: its mark is open.
        for some, kind in ((cells[bounded], "filled"), (cells[~bounded], "hollow")):
            sheet.points(axes, some["length"], some["lat_ratio"], look, kind)
        ends += list(cells["lat_ratio"])
        known = cells[bounded]
        bars = (known["lat_ratio_ci_lo"], known["lat_ratio_ci_hi"])
        axes.vlines(known["length"], *bars, look.color, linewidth=0.8)
    if "vcc" in set(panel["method"]):
        # The paper's ratios are to unfused attention, and the axis has fused vanilla at 1.
        for length, ratio in published.vcc_encoder():
            if length in unfused:
                at = ratio * unfused[length]
                sheet.points(axes, length, at, rows.looks["vcc"], style.PUBLISHED, zorder=5)
                ends.append(at)
    ticks.log_axis(axes, "y", min(ends) / 1.2, max(ends) * 1.2)
    ticks.length_axis(axes, by_length.reached(panel, LATENCY))
    axes.set_ylabel("latency / vanilla's")
