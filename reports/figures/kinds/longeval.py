"""IceFormer's Figure 5: LongEval's accuracy, and the time of the attention, against length."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from reports.figures import captions, published, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows
from reports.looks import VANILLA

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@figure(
    "iceformer_5",
    "IceFormer Fig. 5: LongEval's accuracy and time against length",
    "quality on longeval_topics or longeval_lines",
)
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
    some = [p for p in rows.where(benchmark="longeval").settings() if p["value"].notna().any()]
    drawn = sorted(some[: max(1, most // 2)], key=lambda p: str(p["task"].iloc[0]), reverse=True)
    if not drawn:
        return None
    panels = []
    for panel in drawn:
        title, facts = captions.title(panel), captions.facts(panel)
        compared = [*facts, *captions.scores(panel)]
        panels.append(sheet.Panel(title, compared, partial(paint_accuracy, rows, panel)))
        panels.append(sheet.Panel(title, facts, partial(paint_time, rows, panel)))
    legend = captions.legend(rows, [p[p["value"].notna() | p["attend_ns"].gt(0)] for p in drawn])
    note = "Bars: 95 % intervals."
    if published.cells("iceformer"):
        legend.append((sheet.mark(None, style.PUBLISHED), "published"))
        note += " Published: IceFormer Figure 5, Vicuna 7B on a Ryzen 9 5900X, read off the plot."
    return sheet.Plot(panels, 2, 1.9, legend, note, len(some) - len(drawn))


def paint_accuracy(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    scored = panel[panel["value"].notna()]
    for place, (name, _, cells) in enumerate(rows.arms(scored)):
        cells, look = cells.sort_values("length"), rows.looks[name]
        x = cells["length"] * (1 + 0.008 * place)  # side by side: their intervals overlap
        axes.plot(x, cells["value"], linestyle="-", **sheet.marks(look.color, look.marker))
        known = cells[cells["ci_lo"].notna() & cells["ci_hi"].notna()]
        axes.vlines(x[known.index], known["ci_lo"], known["ci_hi"], look.color, linewidth=0.8)
    ticks.length_axis(axes, set(panel["length"]))
    axes.set_ylabel(captions.quality(scored))
    ticks.score_axis(axes, captions.percent(scored))
    return []


def paint_time(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    axes.set_yscale("log")
    sheet.parity(axes, "y")
    lengths, ends = set(panel["length"]), [1.0]
    base = panel[panel["method"] == VANILLA].groupby("length")["attend_ns"].first()
    for name, _, cells in rows.arms(panel[panel["attend_ns"].gt(0)]):
        cells = cells.assign(y=cells["attend_ns"] / cells["length"].map(base)).dropna(subset=["y"])
        if name == VANILLA or cells.empty:
            continue
        cells, look = cells.sort_values("length"), rows.looks[name]
        axes.plot(
            cells["length"], cells["y"], linestyle="-", **sheet.marks(look.color, look.marker)
        )
        ends += list(cells["y"])
    for cell in published.ratios("iceformer", "Figure 5", "attention_time_s"):
        if cell.task == panel["task"].iloc[0] and cell.length and cell.label in rows.looks:
            sheet.points(
                axes, cell.length, cell.value, rows.looks[cell.label], style.PUBLISHED, zorder=5
            )
            lengths.add(cell.length)
            ends.append(cell.value)
    ticks.length_axis(axes, lengths)
    low, high = min(ends) / 1.2, max(ends) * 1.2
    ticks.log_axis(axes, "y", low, high)
    axes.set_ylabel("time of attention / vanilla's")
    return []
