"""Fourier Transformer's Figure 3: official metrics against r, the share of frequencies kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from reports import looks
from reports.figures import captions, sheet, style
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows, records
from reports.looks import VANILLA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (looks.BLUE, looks.RED, looks.GREEN, looks.PINK, looks.ORANGE, looks.SKY)
MARKS = ("o", "s", "^", "D", "v", "P")


@figure(
    "fourier_3",
    "Fourier Fig. 3: quality against r",
    "fourier with two or more values of method.r on eli5 or any task",
)
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
    """ELI5 where it was measured, as in the paper; other tasks where not."""
    some = _panels(rows.where(task="eli5")) or _panels(rows)
    if not some:
        return None
    drawn = some[:most]
    names = list(dict.fromkeys(name for p in drawn for name in metrics(p)))
    legend: list[sheet.LegendEntry] = [
        (sheet.mark(looks.Look(color, marker, 0), line="-"), style.tidy(name))
        for name, color, marker in zip(names, COLORS, MARKS, strict=False)
    ]
    legend.append((sheet.dashed(looks.GREY), "vanilla"))
    panels = [captions.panel(p, partial(paint, p, names), "length", "scores") for p in drawn]
    note = "Bars: 95 % interval of the main metric. Dashed: vanilla, in the metric's colour."
    return sheet.Plot(panels, 2, 2.1, legend, note, len(some) - len(drawn))


def _panels(rows: FigureRows) -> Sequence[pd.DataFrame]:
    known = rows.cells[
        rows.cells["value"].notna() & rows.cells["method"].isin(["fourier", VANILLA])
    ]
    if known.empty:
        return []
    known = known.assign(
        r=pd.Series(
            [_kept(m, p) for m, p in zip(known["method"], known["method_params"], strict=True)],
            index=known.index,
            dtype=float,
        )
    )
    with_r = replace(rows, cells=known)
    return with_r.settings("length", having=known["value"].notna(), apart="r")


def _kept(method: str, params: str) -> float | None:
    return json.loads(params).get("r") if method == "fourier" else None


def metrics(panel: pd.DataFrame) -> list[str]:
    """The names of the official metrics, the main one first."""
    main = panel["metric"].dropna()
    names = dict.fromkeys(str(name) for name in main.unique())
    for text in panel["metrics"].dropna():
        names |= dict.fromkeys(
            name for name, value in json.loads(text).items() if _number(name, value)
        )
    return list(names)[: len(COLORS)]


def _number(name: str, value: object) -> bool:
    return name not in ("value", "n") and isinstance(value, (int, float))


def _figures(cell: object) -> dict[str, float]:
    text = getattr(cell, "metrics")  # noqa: B009 (a column)
    found = json.loads(text) if isinstance(text, str) else {}
    return {**found, getattr(cell, "metric"): getattr(cell, "value")}  # noqa: B009


def paint(panel: pd.DataFrame, names: list[str], axes: Axes) -> list[sheet.Label]:
    fourier = panel[panel["r"].notna()].sort_values("r")
    vanilla = list(panel[panel["method"] == VANILLA].itertuples())[:1]
    for name, color, marker in zip(names, COLORS, MARKS, strict=False):
        points = [
            (cell.r, _figures(cell)[name]) for cell in records(fourier) if name in _figures(cell)
        ]
        if points:
            axes.plot(*zip(*points, strict=True), linestyle="-", **sheet.marks(color, marker))
        for cell in vanilla:
            if name in _figures(cell):
                axes.axhline(_figures(cell)[name], color=color, linewidth=0.8, linestyle="--")
    for cell in records(fourier):
        if pd.notna(cell.ci_lo) and pd.notna(cell.ci_hi):
            axes.plot(
                [cell.r] * 2, [cell.ci_lo, cell.ci_hi], color=COLORS[0], linewidth=0.7, zorder=1
            )
    axes.set_xlabel("r, share of the frequencies kept")
    axes.set_ylabel("score, %" if panel["value"].abs().max() > 1.5 else "score")
    axes.set_xlim(0, max(1.0, fourier["r"].max()) * 1.04)
    return []
