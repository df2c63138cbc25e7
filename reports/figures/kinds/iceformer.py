"""IceFormer's Figure 5, LongEval's accuracy and the time of the attention against length, and its
Figures 6 and 7, the cost of every method on the tasks of LRA relative to vanilla's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from reports.figures import captions, published, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import SETTING, FigureRows
from reports.looks import VANILLA, base_name
from reports.papers.measured import UNFUSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# --- LongEval -----------------------------------------------------------------------------------


@figure(
    "iceformer_5",
    "IceFormer Fig. 5: LongEval's accuracy and time against length",
    "quality on longeval_topics or longeval_lines",
)
def longeval(rows: FigureRows, most: int) -> sheet.Plot | None:
    some = [p for p in rows.where(benchmark="longeval").settings() if p["value"].notna().any()]
    drawn = sorted(some[: max(1, most // 2)], key=lambda p: str(p["task"].iloc[0]), reverse=True)
    if not drawn:
        return None
    rows = rows.emphasised(drawn)
    panels = []
    for panel in drawn:
        panels.append(captions.panel(panel, partial(_paint_accuracy, rows, panel), "scores"))
        panels.append(captions.panel(panel, partial(_paint_time, rows, panel)))
    legend = captions.legend(rows, [p[p["value"].notna() | p["attend_ns"].gt(0)] for p in drawn])
    note = "Bars: 95 % intervals."
    if any(UNFUSED in set(panel["method"]) for panel in drawn):
        legend.append((sheet.mark(None, style.PUBLISHED), "published"))
        note += " Published: IceFormer Figure 5, Vicuna 7B on a Ryzen 9 5900X, read off the plot."
    return sheet.Plot(panels, 2, 1.9, legend, note, len(some) - len(drawn))


def _paint_accuracy(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> None:
    scored = panel[panel["value"].notna()]
    places: dict[str, int] = {}
    for name, _, cells in rows.arms(scored):
        cells, look = cells.sort_values("length"), rows.looks[name]
        place = places.setdefault(base_name(name), len(places))
        # Drawn side by side, since their intervals overlap.
        x = cells["length"] * (1 + 0.008 * (place % style.MOST_METHODS))
        sheet.points(axes, x, cells["value"], look, linestyle=style.line(look.line), zorder=2)
        known = cells[cells["ci_lo"].notna() & cells["ci_hi"].notna()]
        axes.vlines(x[known.index], known["ci_lo"], known["ci_hi"], look.color, linewidth=0.8)
    ticks.length_axis(axes, set(panel["length"]))
    axes.set_ylabel(captions.quality(scored))
    ticks.score_axis(axes, captions.percent(scored))


def _paint_time(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> None:
    sheet.parity(axes, "y")
    ends = [1.0]
    unfused: dict[Any, float] = {}
    base = panel[panel["method"] == VANILLA].groupby("length")["attend_ns"].first()
    for name, _, cells in rows.arms(panel[panel["attend_ns"].gt(0)]):
        cells = cells.assign(y=cells["attend_ns"] / cells["length"].map(base)).dropna(subset=["y"])
        if name == VANILLA or cells.empty:
            continue
        cells, look = cells.sort_values("length"), rows.looks[name]
        line = style.line(look.line)
        sheet.points(axes, cells["length"], cells["y"], look, linestyle=line, zorder=2)
        ends += list(cells["y"])
        if name == UNFUSED:
            unfused = cells.groupby("length")["y"].first().to_dict()
    # The paper's ratios are to unfused attention, and the axis has fused vanilla at 1.
    for label, cell, ratio in published.ratios("iceformer", "Figure 5", "attention_time_s"):
        own = cell.task == panel["task"].iloc[0] and label in rows.looks
        if own and cell.length in unfused:
            at, look = ratio * unfused[cell.length], rows.looks[label]
            sheet.points(axes, cell.length, at, look, style.PUBLISHED, zorder=5)
            ends.append(at)
    ticks.log_axis(axes, "y", min(ends) / 1.2, max(ends) * 1.2)
    ticks.length_axis(axes, set(panel["length"]))
    axes.set_ylabel("time of attention / vanilla's")


# --- LRA ----------------------------------------------------------------------------------------

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
"""In the paper's order; others of the benchmark come after."""
PAPER = "Core i7-6850K, read off the plot"


class Cost(NamedTuple):
    label: str
    table: str
    metric: str
    figure: str


TIME = Cost("time of attention / vanilla's", "Table 1", "attention_time_s", "Figure 6")
MEMORY = Cost("memory of the whole process / vanilla's", "Table 2", "peak_memory_gb", "Figure 7")


@figure(
    "iceformer_6",
    "IceFormer Fig. 6: time of the attention on LRA, and of vanilla",
    "vanilla and another method on a task of LRA, with latency",
)
def lra_time(rows: FigureRows, most: int) -> sheet.Plot | None:
    cells = rows.cells
    return _lra(rows, cells.assign(cost=cells["attend_ns"].astype(float)), TIME)


@figure(
    "iceformer_7",
    "IceFormer Fig. 7: peak memory on LRA, and of vanilla",
    "vanilla and another method on a task of LRA, with memory",
)
def lra_memory(rows: FigureRows, most: int) -> sheet.Plot | None:
    """Memory of the whole process, as in the paper: the loaded model and the peak above it."""
    cells = rows.cells
    whole = cells["rss_base_bytes"].astype(float) + cells["rss_peak_delta_bytes"].astype(float)
    return _lra(rows, cells.assign(cost=whole.where(cells["device"] == "cpu")), MEMORY)


def _lra(rows: FigureRows, cells: pd.DataFrame, cost: Cost) -> sheet.Plot | None:
    lra = cells[(cells["benchmark"] == "lra") & cells["cost"].gt(0)]
    by = [*SETTING, "length", "seed", "n_samples_planned"]
    base = lra[lra["method"] == VANILLA].drop_duplicates(by)[[*by, "cost"]]
    joined = lra.merge(base, on=by, suffixes=("", "_base"))
    joined = joined.assign(x=joined["cost"] / joined["cost_base"])
    joined = joined[joined["method"] != VANILLA]
    if joined.empty:
        return None
    joined = joined.assign(name=[task.removeprefix("lra_") for task in joined["task"]])
    # One machine and kind of weights, those with the most cells; for each task one model.
    shared = [name for name in SETTING if name not in ("task", "split", "model")]
    groups = [_one_model(group) for _, group in joined.groupby(shared, dropna=False)]
    panel = max(groups, key=lambda group: (group["name"].nunique(), len(group)))
    rows = rows.emphasised([panel])
    legend = captions.legend(rows, [panel])
    note = (
        "Each task at the longest length measured. The dashed line is vanilla. A line joins the "
        "settings of a method."
    )
    every = published.ratios("iceformer", cost.table, cost.metric)
    printed = [one for one in every if one[0] in rows.looks]
    if printed and UNFUSED in set(panel["method"]):
        legend.append((sheet.mark(None, style.PUBLISHED), "published"))
        note += f" Published: IceFormer {cost.figure}, {PAPER}."
    several = panel["model"].nunique() > 1
    title = ["LRA", "each task's own model" if several else str(panel["model"].iloc[0])]
    paints = partial(_paint_lra, rows, panel, printed, cost)
    return sheet.Plot(
        [sheet.Panel(title, captions.facts(panel), paints)], 2, 2.3, legend, note, len(groups) - 1
    )


def _one_model(group: pd.DataFrame) -> pd.DataFrame:
    """For each task, the cells of one model: the one with the most methods, then the most cells."""
    kept = []
    for _, cells in group.groupby("task", sort=False):
        models = [one for _, one in cells.groupby("model")]
        kept.append(max(models, key=lambda one: (one["method"].nunique(), len(one))))
    return pd.concat(kept)


def _paint_lra(
    rows: FigureRows, panel: pd.DataFrame, printed: list[published.Ratio], cost: Cost, axes: Axes
) -> None:
    here = set(panel["name"])
    tasks = [t for t in TASKS if t in here] + sorted(here - set(TASKS))
    methods = sorted(set(panel["method"]), key=lambda name: rows.looks[name].rank)
    sheet.parity(axes, "x")
    ends = [1.0]
    # The paper's ratios are to unfused attention, and the axis has fused vanilla at 1.
    eager = panel[panel["method"] == UNFUSED].sort_values("length")
    unfused = eager.groupby("name")["x"].last().to_dict()
    for at, task in enumerate(tasks):
        cells = panel[panel["name"] == task]
        cells = cells[cells["length"] == cells["length"].max()]
        for place, name in enumerate(methods):
            y = at + 0.7 * ((place + 0.5) / len(methods) - 0.5)
            look = rows.looks[name]
            costs = list(cells.loc[cells["method"] == name, "x"])
            if len(costs) > 1:
                axes.plot(costs, [y] * len(costs), color=look.color, linewidth=0.9, zorder=2)
            for x in costs:
                sheet.points(axes, x, y, look)
                ends.append(x)
            for label, cell, ratio in printed:
                if cell.task == task and label == name and task in unfused:
                    at_x = ratio * unfused[task]
                    sheet.points(axes, at_x, y, look, style.PUBLISHED, zorder=5)
                    ends.append(at_x)
        if at % 2:
            axes.axhspan(at - 0.5, at + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.set_yticks(range(len(tasks)), [style.tidy(task) for task in tasks])
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    ticks.log_axis(axes, "x", min(ends) / 1.15, max(ends) * 1.15)
    axes.set_xlabel(cost.label)
