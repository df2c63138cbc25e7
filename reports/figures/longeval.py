"""IceFormer's Figure 5: LongEval's accuracy, and the time of the attention, against length."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from reports.figures import published, sheet, style, ticks, words
from reports.figures.data import VANILLA, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(rows: Rows, most: int) -> sheet.Plot | None:
    some = [p for p in rows.where(benchmark="longeval").settings() if p["value"].notna().any()]
    drawn = sorted(some[: max(1, most // 2)], key=lambda p: str(p["task"].iloc[0]), reverse=True)
    if not drawn:
        return None
    panels = []
    for panel in drawn:
        title, facts = words.title(panel), words.facts(panel)
        panels.append(sheet.Panel(title, facts, partial(paint_accuracy, rows, panel)))
        panels.append(sheet.Panel(title, facts, partial(paint_time, rows, panel)))
    legend = words.legend(rows, [p[p["value"].notna() | p["attend_ns"].gt(0)] for p in drawn])
    note = "Bars: 95 % intervals."
    if published.cells("iceformer"):
        legend.append((sheet.mark(None, style.PUBLISHED), "published"))
        note += " Published: IceFormer Figure 5, Vicuna 7B on a Ryzen 9 5900X, read off the plot."
    return sheet.Plot(panels, 2, 1.9, legend, note, len(some) - len(drawn))


def paint_accuracy(rows: Rows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    scored = panel[panel["value"].notna()]
    for place, (name, _, cells) in enumerate(rows.arms(scored)):
        cells, look = cells.sort_values("length"), rows.looks[name]
        x = cells["length"] * (1 + 0.008 * place)  # side by side: their intervals overlap
        axes.plot(x, cells["value"], linestyle="-", **sheet.marks(look.color, look.marker))
        known = cells[cells["ci_lo"].notna() & cells["ci_hi"].notna()]
        axes.vlines(x[known.index], known["ci_lo"], known["ci_hi"], look.color, linewidth=0.8)
    ticks.length_axis(axes, set(panel["length"]))
    axes.set_ylabel(words.quality(scored))
    ticks.score_axis(axes, words.percent(scored))
    return []


def paint_time(rows: Rows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    axes.set_yscale("log")
    axes.axhline(1, color=style.GREY, linewidth=0.6, dashes=(3, 2), zorder=1)
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
        if cell.task == panel["task"].iloc[0] and cell.length and cell.method in rows.looks:
            color = rows.looks[cell.method].color
            axes.plot(
                cell.length,
                cell.value,
                linestyle="",
                **sheet.marks(color, "o", style.PUBLISHED),
                zorder=5,
            )
            lengths.add(cell.length)
            ends.append(cell.value)
    ticks.length_axis(axes, lengths)
    low, high = min(ends) / 1.2, max(ends) * 1.2
    axes.set_ylim(low, high)
    ticks.plain_log(axes.yaxis, low, high)
    axes.set_ylabel("time of attention / vanilla's")
    return []
