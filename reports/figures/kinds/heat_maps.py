"""Heat maps of scores in 0…100, as colour and number: RULER's methods by task, with a panel for
each length; and a decoder's KV caches by kept share, with a panel for each task, length and order
of text and question."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.status import QualityVerdict, Status
from reports.figures import captions, sheet, style
from reports.figures.catalogue import figure
from reports.figures.cells import SETTING, FigureRows, records
from reports.kv_board import kept_share
from reports.looks import BLACK, GREY, VANILLA, without_setting
from reports.oracles import ORACLE
from reports.ruler_scores import BENCHMARK, TASKS, short
from reports.wording import AT_CHANCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = "Blues"
WHITE_FROM = 60
"""Scores from which on the number is white."""
LINE_IN = 0.16
"""Height of a line of cells."""
NAME_PT, NUMBER_PT, WORD_PT = 5.8, 5.4, 4.8
HATCH = "//////"
ENDS: dict[str, str] = {
    Status.OOM_HOST: "mem", Status.OOM_DEVICE: "mem", Status.TIMEOUT: "time", Status.ERROR: "err",
    Status.UNSUPPORTED: "n/s", Status.SKIPPED: "skip", Status.RETIRED: "ret",
}  # fmt: skip
ENDED = (
    "Colour and number: score, 0 (white) to 100 (dark). Hatched: not run. Grey: no score (mem out "
    "of memory, time out of time, err failed, n/s not supported, skip left out of the budget)."
)


def _fill(axes: Axes, values: Any, texts: Sequence[Sequence[str]]) -> None:
    """Draws scores [lines, columns], NaN where there is no score, each with its text."""
    axes.pcolormesh(
        np.ma.masked_invalid(values), cmap=COLORS, vmin=0, vmax=100, edgecolors="white",
        linewidth=0.8,
    )  # fmt: skip
    for (line, at), value in np.ndenumerate(values):
        if not np.isnan(value):
            _write(axes, at, line, texts[line][at], "white" if value >= WHITE_FROM else BLACK)


def _without(axes: Axes, at: int, line: int, status: str | None) -> None:
    from matplotlib.patches import Rectangle

    """Draws a cell without a score: hatched if it wasn't run, grey with its status if it ended."""
    ended = status is not None and status != Status.OK
    face, hatch = (style.PALE, "") if ended else ("white", HATCH)
    axes.add_patch(
        Rectangle((at, line), 1, 1, facecolor=face, hatch=hatch, edgecolor="#BBBBBB", linewidth=0.4)
    )
    if ended:
        _write(axes, at, line, ENDS.get(str(status), "err"), GREY, WORD_PT)


def _write(axes: Axes, at: int, line: int, text: str, color: str, size: float = NUMBER_PT) -> None:
    axes.text(at + 0.5, line + 0.5, text, ha="center", va="center", fontsize=size, color=color)


def _frame(axes: Axes, lines: Sequence[str], columns: Sequence[str]) -> None:
    """Draws the names of lines and columns, without ticks or a frame."""
    axes.set_xticks(np.arange(len(columns)) + 0.5, list(columns), rotation=45, ha="right",
                    rotation_mode="anchor", fontsize=NAME_PT)  # fmt: skip
    axes.set_yticks(np.arange(len(lines)) + 0.5, list(lines), fontsize=NAME_PT)
    axes.set(xlim=(0, len(columns)), ylim=(len(lines), 0))
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


# --- RULER --------------------------------------------------------------------------------------

SHARED = [*(name for name in SETTING if name != "task"), "n_samples_planned", "seed"]
RULER_NOTE = f"{ENDED} mean: of the {len(TASKS)} tasks; with *, of those that have a score."


@figure(
    "ruler_heatmap",
    "RULER: the score of every method on every task, by length",
    "scores of tasks of RULER: bench run -m experiment=ruler scale=small",
)
def ruler(rows: FigureRows, most: int) -> sheet.Plot | None:
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
        panels.append(sheet.Panel(title, facts, partial(paint_ruler, rows, panel)))
    lines = max(len(list(rows.arms(panel))) for panel in drawn)
    floor = any(_at_chance(panel) for panel in drawn)
    chance = f" {AT_CHANCE}: vanilla isn't clearly above one constant answer." if floor else ""
    height = 0.95 + LINE_IN * lines
    return sheet.Plot(panels, 1, height, [], RULER_NOTE + chance, len(groups) - len(drawn))


def _at_chance(panel: pd.DataFrame) -> set[str]:
    """The tasks that can't distinguish methods."""
    base = panel[(panel["method"] == VANILLA) & panel["at_chance"].eq(True)]
    return set(base["name"])


def paint_ruler(rows: FigureRows, panel: pd.DataFrame, axes: Axes) -> None:
    arms = list(rows.arms(panel))
    values = np.full((len(arms), len(TASKS) + 1), np.nan)
    for line, (_, _, cells) in enumerate(arms):
        found = cells.drop_duplicates("name", keep="last").set_index("name").reindex(TASKS)
        scores = found["value"].astype(float)
        values[line] = [*scores, scores.mean()]
        for at, status in enumerate(found["status"]):
            if np.isnan(values[line, at]):
                _without(axes, at, line, None if pd.isna(status) else status)
    _fill(axes, values, list(map(_texts, values)))
    floor = _at_chance(panel)
    columns = [f"{task} {AT_CHANCE}" if task in floor else task for task in TASKS]
    labels = [style.tidy(" ".join(filter(None, (name, more)))) for name, more, _ in arms]
    _frame(axes, labels, [*columns, "mean"])
    axes.axvline(len(TASKS), color=BLACK, linewidth=0.8)


def _texts(scores: np.ndarray) -> list[str]:
    """The numbers of a line; the mean has a star unless it is over all tasks."""
    star = "*" if np.isnan(scores).any() else ""
    return [*(f"{score:.0f}" for score in scores[:-1]), f"{scores[-1]:.0f}{star}"]


# --- KV caches ----------------------------------------------------------------------------------

KEPT = ("4 or 8 bits", "2 bits", "keeps 1/2", "keeps 1/4", "keeps 1/8")
KEPT_NOTE = (
    "Colour and number: score, 0 (white) to 100 (dark). ✓: not shown to be lower than vanilla's "
    "(95 %, paired). Methods keep or read a share of the entries, or all in fewer bits; an oracle "
    "shows the ceiling."
)


@figure(
    "kv_heatmap",
    "scores of a decoder's KV caches by the share or bits that they keep",
    "scores of three caches or more in one setting: bench run -m experiment=kv_board",
)
def caches(rows: FigureRows, most: int) -> sheet.Plot | None:
    cells = rows.cells[rows.cells["value"].notna()]
    named = zip(cells["method"], cells["method_params"], strict=True)
    kept = [kept_share({"method": name, "method_params": given}) for name, given in named]
    cells = cells.assign(kept=kept)
    by = [*SETTING, "length", "n_samples_planned"]
    groups = [group for _, group in cells.groupby(by, dropna=False, sort=True, observed=True)]
    some = [group for group in groups if len(_lines(rows, group)) > 2]
    if not some:
        return None
    some.sort(key=lambda group: (-len(group), group["question"].notna().any()))
    drawn = some[:most]
    panels = [_panel(rows, group) for group in drawn]
    lines = max(len(_lines(rows, group)) for group in drawn)
    height = 0.85 + LINE_IN * lines
    return sheet.Plot(panels, 2, height, [], KEPT_NOTE, len(some) - len(drawn))


def _lines(rows: FigureRows, group: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The cells of each method by column; the method with the highest mean is first, oracles are
    last."""
    found: dict[str, dict[str, Any]] = {}
    for cell in records(group[group["kept"].isin(KEPT)]):
        name = without_setting(cell.method)
        found.setdefault(f"{name} ({ORACLE})" if cell.method in rows.oracles else name, {})[
            cell.kept
        ] = cell
    means = {name: np.mean([cell.value for cell in its.values()]) for name, its in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda n: (ORACLE in n, -means[n], n))}


def _panel(rows: FigureRows, group: pd.DataFrame) -> sheet.Panel:
    words = [*captions.facts(group), f"{group['n_samples_planned'].iloc[0]:.0f} samples"]
    vanilla = group.loc[group["method"] == VANILLA, "value"]
    words += [f"vanilla {vanilla.iloc[0]:.1f}"] if len(vanilla) else []
    return sheet.Panel(captions.title(group, "length"), words, partial(paint_caches, rows, group))


def paint_caches(rows: FigureRows, group: pd.DataFrame, axes: Axes) -> None:
    lines = _lines(rows, group)
    columns = [name for name in KEPT if any(name in its for its in lines.values())]
    cells = [[its.get(name) for name in columns] for its in lines.values()]
    values = [[np.nan if cell is None else cell.value for cell in line] for line in cells]
    _fill(axes, np.array(values), [[_cache_text(cell) for cell in line] for line in cells])
    _frame(axes, list(map(style.tidy, lines)), columns)


def _cache_text(cell: Any) -> str:
    """A score, with a mark unless it is lower than vanilla's by its verdict."""
    if cell is None:
        return ""
    return f"{cell.value:.1f}{'' if cell.quality_verdict == QualityVerdict.LOWER else ' ✓'}"
