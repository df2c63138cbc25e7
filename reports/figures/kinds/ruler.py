"""RULER's scores as a heat map: methods by tasks, a panel for each length."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.status import Status
from reports.figures import captions, sheet, style
from reports.figures.catalogue import figure
from reports.figures.cells import SETTING, FigureRows
from reports.looks import BLACK, GREY, VANILLA
from reports.ruler import BENCHMARK, TASKS, short
from reports.wording import AT_CHANCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARED = [*(name for name in SETTING if name != "task"), "n_samples_planned", "seed"]
COLORS = "Blues"
WHITE_FROM = 60
"""Scores from which on the number stands in white."""
LINE_IN, AROUND_IN = 0.16, 0.95
NUMBER_PT, WORD_PT = 5.4, 4.8
HATCH = "//////"
ENDS: dict[str, str] = {
    Status.OOM_HOST: "mem", Status.OOM_DEVICE: "mem", Status.TIMEOUT: "time", Status.ERROR: "err",
    Status.UNSUPPORTED: "n/s", Status.SKIPPED: "skip", Status.RETIRED: "ret",
}  # fmt: skip
NOTE = (
    "Colour and number: score, 0 (white) to 100 (dark). Hatched: not run. Grey: no score (mem out "
    "of memory, time out of time, err failed, n/s not supported, skip left out of the budget). "
    f"mean: of the {len(TASKS)} tasks; with *, of those that have a score."
)


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
    height = AROUND_IN + LINE_IN * lines
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
                _without(axes, at, line, None if cell is None else cell["status"])
        known = values[line, :-1][~np.isnan(values[line, :-1])]
        values[line, -1] = known.mean() if len(known) else np.nan
    _fill(axes, values)
    floor = _at_chance(panel)
    names = [f"{task} {AT_CHANCE}" if task in floor else task for task in TASKS]
    axes.set_xticks(np.arange(len(TASKS) + 1) + 0.5, [*names, "mean"], rotation=45, ha="right",
                    rotation_mode="anchor", fontsize=5.8)  # fmt: skip
    labels = (style.tidy(" ".join(filter(None, (name, more)))) for name, more, _ in arms)
    axes.set_yticks(np.arange(len(arms)) + 0.5, list(labels), fontsize=5.8)
    axes.set(xlim=(0, len(TASKS) + 1), ylim=(len(arms), 0))
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.axvline(len(TASKS), color=BLACK, linewidth=0.8)
    return []


def _fill(axes: Axes, values: Any) -> None:
    axes.pcolormesh(
        np.ma.masked_invalid(values), cmap=COLORS, vmin=0, vmax=100, edgecolors="white",
        linewidth=0.8,
    )  # fmt: skip
    for (line, at), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        part = at == len(TASKS) and np.isnan(values[line]).any()
        color = "white" if value >= WHITE_FROM else BLACK
        _write(axes, at, line, f"{value:.0f}{'*' if part else ''}", color)


def _without(axes: Axes, at: int, line: int, status: str | None) -> None:
    """A cell without a score: hatched where it wasn't run, grey with a word where it ended so."""
    from matplotlib.patches import Rectangle

    ended = status is not None and status != Status.OK
    face, hatch = (style.PALE, "") if ended else ("white", HATCH)
    axes.add_patch(
        Rectangle((at, line), 1, 1, facecolor=face, hatch=hatch, edgecolor="#BBBBBB", linewidth=0.4)
    )
    if ended:
        _write(axes, at, line, ENDS.get(str(status), "err"), GREY, WORD_PT)


def _write(axes: Axes, at: int, line: int, text: str, color: str, size: float = NUMBER_PT) -> None:
    axes.text(at + 0.5, line + 0.5, text, ha="center", va="center", fontsize=size, color=color)
