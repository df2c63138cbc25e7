"""IceFormer's Figure 5: LongEval's accuracy, and the time of the attention, against length."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from reports.figures import captions, published, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows
from reports.looks import VANILLA, base_name
from reports.papers.measured import UNFUSED

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
    rows = rows.emphasised(drawn)
    panels = []
    for panel in drawn:
        title, facts = captions.title(panel), captions.facts(panel)
        compared = [*facts, *captions.scores(panel)]
        panels.append(sheet.Panel(title, compared, partial(paint_accuracy, rows, panel)))
        panels.append(sheet.Panel(title, facts, partial(paint_time, rows, panel)))
    legend = captions.legend(rows, [p[p["value"].notna() | p["attend_ns"].gt(0)] for p in drawn])
    note = "Bars: 95 % intervals."
    if any(UNFUSED in set(panel["method"]) for panel in drawn):
        legend.append((sheet.mark(None, style.PUBLISHED), "published"))
        note += " Published: IceFormer Figure 5, Vicuna 7B on a Ryzen 9 5900X, read off the plot."
    return sheet.Plot(panels, 2, 1.9, legend, note, len(some) - len(drawn))


def paint_accuracy(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    scored = panel[panel["value"].notna()]
    places: dict[str, int] = {}
    for name, _, cells in rows.arms(scored):
        cells, look = cells.sort_values("length"), rows.looks[name]
        place = places.setdefault(base_name(name), len(places))
        # Side by side: their intervals overlap.
        x = cells["length"] * (1 + 0.008 * (place % style.MOST_METHODS))
        axes.plot(
            x,
            cells["value"],
            linestyle=style.line(look.line),
            **sheet.marks(look.color, look.marker),
        )
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
    unfused: dict[Any, float] = {}
    base = panel[panel["method"] == VANILLA].groupby("length")["attend_ns"].first()
    for name, _, cells in rows.arms(panel[panel["attend_ns"].gt(0)]):
        cells = cells.assign(y=cells["attend_ns"] / cells["length"].map(base)).dropna(subset=["y"])
        if name == VANILLA or cells.empty:
            continue
        cells, look = cells.sort_values("length"), rows.looks[name]
        line, marks = style.line(look.line), sheet.marks(look.color, look.marker)
        axes.plot(cells["length"], cells["y"], linestyle=line, **marks)
        ends += list(cells["y"])
        if name == UNFUSED:
            unfused = cells.groupby("length")["y"].first().to_dict()
    # The paper's ratios are to unfused attention, and the axis has fused vanilla at 1.
    for cell in published.ratios("iceformer", "Figure 5", "attention_time_s"):
        own = cell.task == panel["task"].iloc[0] and cell.label in rows.looks
        if own and cell.length in unfused:
            at, look = cell.value * unfused[cell.length], rows.looks[cell.label]
            sheet.points(axes, cell.length, at, look, style.PUBLISHED, zorder=5)
            ends.append(at)
    ticks.length_axis(axes, lengths)
    low, high = min(ends) / 1.2, max(ends) * 1.2
    ticks.log_axis(axes, "y", low, high)
    axes.set_ylabel("time of attention / vanilla's")
    return []
