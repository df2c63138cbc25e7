"""RULER's scores as a heat map: methods by tasks, a panel for each length."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from reports.figures import captions, heat_map, sheet, style
from reports.figures.catalogue import figure
from reports.figures.cells import SETTING, FigureRows
from reports.looks import BLACK, VANILLA
from reports.ruler import BENCHMARK, TASKS, short
from reports.wording import AT_CHANCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARED = [*(name for name in SETTING if name != "task"), "n_samples_planned", "seed"]
AROUND_IN = 0.95
NOTE = f"{heat_map.LEGEND} mean: of the {len(TASKS)} tasks; with *, of those that have a score."


@figure(
    "ruler_heatmap",
    "RULER: the score of every method on every task, by length",
    "scores of tasks of RULER: bench run -m experiment=ruler scale=small",
)
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
    cells = rows.cells[rows.cells["benchmark"] == BENCHMARK]
    cells = cells.assign(name=[short(task) for task in cells["task"]])
    cells = cells[cells["name"].isin(TASKS)]
    if not cells["value"].notna().any():
        return None
    settings = [group for _, group in cells.groupby(SHARED, dropna=False, sort=False)]
    settings.sort(key=lambda group: -len(group))
    groups = [one for group in settings for _, one in group.groupby("length")]
    drawn = groups[:most]
    panels = []
    for panel in drawn:
        cell = panel.iloc[0]
        title = [str(cell["model"]), f"{int(cell['length']):,} tokens"]
        facts = [*captions.facts(panel), f"{cell['n_samples_planned']:.0f} samples a task"]
        panels.append(sheet.Panel(title, facts, partial(paint, rows, panel)))
    lines = max(len(list(rows.arms(panel))) for panel in drawn)
    floor = any(_at_chance(panel) for panel in drawn)
    chance = f" {AT_CHANCE}: vanilla isn't clearly above one constant answer." if floor else ""
    height = AROUND_IN + heat_map.LINE_IN * lines
    return sheet.Plot(panels, 1, height, [], NOTE + chance, len(groups) - len(drawn))


def _at_chance(panel: pd.DataFrame) -> set[str]:
    """The tasks that can't tell methods apart."""
    base = panel[(panel["method"] == VANILLA) & panel["at_chance"].eq(True)]
    return set(base["name"])


def paint(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    arms = list(rows.arms(panel))
    values = np.full((len(arms), len(TASKS) + 1), np.nan)
    for line, (_, _, cells) in enumerate(arms):
        by_task = {cell["name"]: cell for _, cell in cells.iterrows()}
        for at, task in enumerate(TASKS):
            cell = by_task.get(task)
            values[line, at] = np.nan if cell is None else cell["value"]
            if np.isnan(values[line, at]):
                heat_map.without(axes, at, line, None if cell is None else cell["status"])
        known = values[line, :-1][~np.isnan(values[line, :-1])]
        values[line, -1] = known.mean() if len(known) else np.nan
    heat_map.fill(axes, values, list(map(_texts, values)))
    floor = _at_chance(panel)
    columns = [f"{task} {AT_CHANCE}" if task in floor else task for task in TASKS]
    labels = [style.tidy(" ".join(filter(None, (name, more)))) for name, more, _ in arms]
    heat_map.frame(axes, labels, [*columns, "mean"])
    axes.axvline(len(TASKS), color=BLACK, linewidth=0.8)
    return []


def _texts(scores: np.ndarray) -> list[str]:
    """The numbers of a line; the mean has a star unless it is of all tasks."""
    star = "*" if np.isnan(scores).any() else ""
    return [*(f"{score:.0f}" for score in scores[:-1]), f"{scores[-1]:.0f}{star}"]
