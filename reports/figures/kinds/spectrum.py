"""Fourier Transformer's Figure 1: the spectrum of what each layer reads, of any model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from reports import looks
from reports.figures import sheet, studies, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUMBERS = ("layer", "frequency", "power", "rows", "tokens_mean", "length")
SAME = ("model", "weights_sha256", "task", "dataset_sha256", "length")
MOST_LAYERS = 7


@figure(
    "fourier_1",
    "Fourier Fig. 1: spectrum of the hidden states, layer by layer",
    "a measured spectrum: bench spectrum",
)
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
    """Two panels a model: amplitude against frequency, and the power below each frequency."""
    read = studies.read(rows.folder, "spectrum", NUMBERS)
    if read.empty:
        return None
    read = read[read["file"] == read.groupby(list(SAME), dropna=False)["file"].transform("max")]
    groups = [group for _, group in read.groupby(list(SAME), dropna=False, sort=False)]
    drawn = groups[: max(1, most // 2)]
    panels = []
    for group in drawn:
        title, facts = _title(group), _facts(group)
        panels.append(sheet.Panel(title, facts, partial(paint_amplitude, group)))
        panels.append(sheet.Panel(title, facts, partial(paint_share, group)))
    deepest = max((group["layer"].max() for group in drawn), default=0)
    legend: list[sheet.LegendEntry] = [
        (_line(_color(layer, deepest)), _name(layer, deepest)) for layer in _chosen(deepest)
    ]
    note = (
        "Amplitude: mean over hidden dimensions and rows, relative to the layer's own root mean "
        "square, so that white noise is 1. Share: that of the lowest frequencies in its power."
    )
    if len({group["layer"].max() for group in drawn}) > 1:
        note += " Colours run from the first layer of each model to its output."
    return sheet.Plot(panels, 2, 2.1, legend, note, len(groups) - len(drawn))


def _title(panel: pd.DataFrame) -> list[str]:
    return [str(panel["model"].iloc[0]), str(panel["task"].iloc[0])]


def _facts(panel: pd.DataFrame) -> list[str]:
    one = panel.iloc[0]
    return [
        f"{one['rows']:.0f} rows of {one['tokens_mean']:,.0f} tokens",
        f"{one['weights_kind']} weights",
    ]


def _chosen(deepest: float) -> list[int]:
    """At most seven layers, the first and the last among them, evenly apart."""
    count = min(MOST_LAYERS, int(deepest) + 1)
    return sorted({round(i * deepest / max(1, count - 1)) for i in range(count)})


def _color(layer: float, deepest: float) -> Any:
    """From light to dark with depth: an order that greys and any colour vision keep."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 - 0.9 * layer / max(1.0, deepest))


def _name(layer: int, deepest: float) -> str:
    return "output" if layer == deepest else f"layer {layer + 1} reads"


def _line(color: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color)


def paint_amplitude(panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    deepest = panel["layer"].max()
    axes.set_yscale("log")
    for layer in _chosen(deepest):
        mine = panel[panel["layer"] == layer].sort_values("frequency")
        axes.plot(
            mine["frequency"], mine["power"] ** 0.5, color=_color(layer, deepest), linewidth=0.9
        )
    sheet.parity(axes, "y")
    shown = panel[panel["layer"].isin(_chosen(deepest))]
    low, high = shown["power"].min() ** 0.5 / 1.15, shown["power"].max() ** 0.5 * 1.15
    ticks.log_axis(axes, "y", low, high)
    axes.set_xlim(0, 0.5)
    axes.set_xlabel("frequency, cycles / token")
    axes.set_ylabel("amplitude, relative")
    return []


def paint_share(panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    deepest = panel["layer"].max()
    for layer in _chosen(deepest):
        mine = panel[panel["layer"] == layer].sort_values("frequency")
        share = mine["power"].cumsum() / mine["power"].sum() * 100
        kept = (mine["frequency"] + mine["frequency"].iloc[0]) / 0.5
        axes.plot([0, *kept], [0, *share], color=_color(layer, deepest), linewidth=0.9)
    axes.plot([0, 1], [0, 100], color=looks.GREY, linewidth=0.6, dashes=(3, 2), zorder=1)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 102)
    axes.set_xlabel("share of the frequencies kept, lowest first")
    axes.set_ylabel("share of the power, %")
    return []
