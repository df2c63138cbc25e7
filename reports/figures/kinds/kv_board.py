"""Scores of a decoder's KV caches as a heat map: methods by what they keep, a panel for each task,
length and order of text and question."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.status import QualityVerdict
from reports.figures import captions, heat_map, sheet, style
from reports.figures.catalogue import figure
from reports.figures.cells import SETTING, FigureRows, records
from reports.looks import VANILLA
from reports.oracles import ORACLE
from reports.result_tables import kept_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("4 or 8 bits", "2 bits", "keeps 1/2", "keeps 1/4", "keeps 1/8")
AROUND_IN = 0.85
NOTE = (
    "Colour and number: score, 0 (white) to 100 (dark). ✓: not shown to be lower than vanilla's "
    "(95 %, paired). Methods keep or read a share of the entries, or all in fewer bits; an oracle "
    "shows the ceiling."
)


@figure(
    "kv_heatmap",
    "scores of a decoder's KV caches by the share or bits that they keep",
    "scores of three caches or more in one setting: bench run -m experiment=kv_board",
)
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
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
    height = AROUND_IN + heat_map.LINE_IN * lines
    return sheet.Plot(panels, 2, height, [], NOTE, len(some) - len(drawn))


def _lines(rows: FigureRows, group: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """For each method, that of the highest mean first and oracles last, its cells by column."""
    found: dict[str, dict[str, Any]] = {}
    for cell in records(group[group["kept"].isin(COLUMNS)]):
        name = cell.method.partition("·")[0]
        found.setdefault(f"{name} ({ORACLE})" if cell.method in rows.oracles else name, {})[
            cell.kept
        ] = cell
    means = {name: np.mean([cell.value for cell in its.values()]) for name, its in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda n: (ORACLE in n, -means[n], n))}


def _panel(rows: FigureRows, group: pd.DataFrame) -> sheet.Panel:
    words = [*captions.facts(group), f"{group['n_samples_planned'].iloc[0]:.0f} samples"]
    vanilla = group.loc[group["method"] == VANILLA, "value"]
    words += [f"vanilla {vanilla.iloc[0]:.1f}"] if len(vanilla) else []
    return sheet.Panel(captions.title(group, "length"), words, partial(paint, rows, group))


def paint(rows: FigureRows, group: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    lines = _lines(rows, group)
    columns = [name for name in COLUMNS if any(name in its for its in lines.values())]
    values = np.full((len(lines), len(columns)), np.nan)
    texts = [[""] * len(columns) for _ in lines]
    for line, its in enumerate(lines.values()):
        for at, name in enumerate(columns):
            cell = its.get(name)
            if cell is None:
                continue
            values[line, at] = cell.value
            mark = "" if cell.quality_verdict == QualityVerdict.LOWER else " ✓"
            texts[line][at] = f"{cell.value:.1f}{mark}"
    heat_map.fill(axes, values, texts)
    heat_map.frame(axes, list(map(style.tidy, lines)), columns)
    return []
