"""Figures of the files of bench recall and bench spectrum: IceFormer's Figure 3, recall of k-NN
searches against the time to build and to query; and Fourier Transformer's Figure 1, the spectrum of
each layer's input, for any model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.errors import RequestError
from bench.host.host import short_host
from bench.units import counted
from reports import looks
from reports.figures import sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import STUDIES, FigureRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _read(folder: Path, name: str, numbers: tuple[str, ...]) -> pd.DataFrame:
    """The lines of every `name` study of a folder, newest file first in column `file`. Raises
    RequestError for a file of another kind."""
    found = [pd.DataFrame()]
    paths = folder.glob(f"**/{STUDIES}/{name}-*.csv")
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
            if frame.isna().any(axis=None):
                raise ValueError("a line is too short")
            figures = frame[list(numbers)].replace("", np.nan).astype(float)
        except (OSError, ValueError, KeyError) as error:
            raise RequestError(
                f"can't read {path}: {error}; measure it again or remove it"
            ) from error
        found.append(frame.assign(**figures, file=path.name))
    return pd.concat(found, ignore_index=True)


# --- recall -------------------------------------------------------------------------------------

TIMES = (
    "total_ns", "total_min_ns", "total_max_ns", "recall", "keys", "queries", "dims", "k", "threads",
)  # fmt: skip
SEARCHED = ("host_id", "threads", "data", "metric", "keys", "queries", "dims", "k")
LOOKS = {
    "topk": (looks.BLACK, "o"),
    "exact": (looks.GREY, "o"),
    "dci": (looks.RED, "D"),
    "quantized": (looks.RED, "s"),
    "blocks": (looks.RED, "p"),
    "faiss:flat": (looks.BLUE, "o"),
    "faiss:ivf": (looks.BLUE, "^"),
    "faiss:hnsw": (looks.BLUE, "P"),
    "faiss:fastscan": (looks.BLUE, "s"),
    "hnswlib": (looks.GREEN, "v"),
    "annoy": (looks.PINK, "X"),
    "scann": (looks.ORANGE, "*"),
}
NAMES = {
    "topk": "exact top-k",
    "exact": "ours: exact",
    "dci": "ours: DCI",
    "quantized": "ours: 8-bit",
    "blocks": "ours: 8-bit, in blocks",
}
METRICS = {"ip": "inner product", "l2": "Euclidean"}


@figure(
    "iceformer_3",
    "IceFormer Fig. 3: recall of k-NN searches against their time",
    "a measured search: bench recall",
)
def recall(rows: FigureRows, most: int) -> sheet.Plot | None:
    read = _read(rows.folder, "recall", TIMES)
    if read.empty or not read["recall"].notna().any():
        return None
    read = read[read["recall"].notna()]
    # If a search was measured twice in one setting, the newest file counts.
    read = read.drop_duplicates([*SEARCHED, "search", "parameters"])
    groups = [group for _, group in read.groupby(list(SEARCHED), dropna=False, sort=False)]
    groups.sort(key=lambda group: (-group["keys"].iloc[0], str(group["data"].iloc[0])))
    drawn = groups[:most]
    panels = []
    for panel in drawn:
        one = panel.iloc[0]
        title = [str(one["data"]), f"{one['keys']:,.0f} keys of {one['dims']:,.0f}"]
        facts = [
            f"{one['queries']:,.0f} queries",
            f"{one['k']:.0f} nearest by {METRICS[one['metric']]}",
            counted(round(one["threads"]), "thread"),
            sheet.Own(" ".join(filter(None, (one["cpu_model"], short_host(one["host_id"]))))),
        ]
        panels.append(sheet.Panel(title, facts, partial(_paint_recall, panel)))
    legend: list[sheet.LegendEntry] = [
        (sheet.mark(_look(name)), style.tidy(NAMES.get(name, name)))
        for name in _ordered(pd.concat(drawn))
    ]
    note = (
        "Time to build the index and to ask all queries; bars: the fastest and the slowest run. A "
        "line joins one search over its effort. Right and below is better."
    )
    return sheet.Plot(panels, 2, 2.2, legend, note, len(groups) - len(drawn))


def _ordered(read: pd.DataFrame) -> list[str]:
    """The searches that were measured, in the order of the legend."""
    here = set(read["search"])
    return [*(name for name in LOOKS if name in here), *sorted(here - set(LOOKS))]


def _look(name: str) -> looks.Look:
    return looks.Look(*LOOKS[name]) if name in LOOKS else looks.looks([name])[name]


def _paint_recall(panel: pd.DataFrame, axes: Axes) -> None:
    for name in _ordered(panel):
        mine, look = panel[panel["search"] == name].sort_values("recall"), _look(name)
        ends = (mine["total_min_ns"] / 1e9, mine["total_max_ns"] / 1e9)
        axes.vlines(mine["recall"], *ends, look.color, linewidth=0.8)
        sheet.points(axes, mine["recall"], mine["total_ns"] / 1e9, look, linestyle="-", zorder=2)
    low, high = panel["total_min_ns"].min() / 1.3e9, panel["total_max_ns"].max() * 1.3 / 1e9
    ticks.log_axis(axes, "y", low, high)
    least = min(0.9, float(panel["recall"].min()))
    axes.set_xlim(least - 0.04 * (1 - least), 1 + 0.04 * (1 - least))
    axes.set_xlabel(f"recall of the {panel['k'].iloc[0]:.0f} nearest")
    axes.set_ylabel("time, s")


# --- spectrum -----------------------------------------------------------------------------------

POWERS = ("layer", "frequency", "power", "rows", "tokens_mean", "length")
ENCODED = ("model", "weights_sha256", "task", "dataset_sha256", "length")
MOST_LAYERS = 7


@figure(
    "fourier_1",
    "Fourier Fig. 1: spectrum of the hidden states, layer by layer",
    "a measured spectrum: bench spectrum",
)
def spectrum(rows: FigureRows, most: int) -> sheet.Plot | None:
    from matplotlib.lines import Line2D

    """Two panels for each model: amplitude against frequency, and the power below each
    frequency."""
    read = _read(rows.folder, "spectrum", POWERS)
    if read.empty:
        return None
    read = read[read["file"] == read.groupby(list(ENCODED), dropna=False)["file"].transform("max")]
    groups = [group for _, group in read.groupby(list(ENCODED), dropna=False, sort=False)]
    drawn = groups[: max(1, most // 2)]
    panels = []
    for group in drawn:
        one = group.iloc[0]
        title = [str(one["model"]), str(one["task"])]
        facts = [
            f"{one['rows']:.0f} rows of {one['tokens_mean']:,.0f} tokens",
            f"{one['weights_kind']} weights",
        ]
        for paint in (_paint_amplitude, _paint_share):
            panels.append(sheet.Panel(title, facts, partial(paint, group)))
    deepest = max(group["layer"].max() for group in drawn)
    legend: list[sheet.LegendEntry] = []
    for layer in _chosen(deepest):
        name = "output" if layer == deepest else f"layer {layer + 1} reads"
        legend.append((Line2D([], [], color=_color(layer, deepest)), name))
    note = (
        "Amplitude: mean over hidden dimensions and rows, relative to the layer's own root mean "
        "square, so that white noise is 1. Share: that of the lowest frequencies in its power."
    )
    if len({group["layer"].max() for group in drawn}) > 1:
        note += " Colours run from the first layer of each model to its output."
    return sheet.Plot(panels, 2, 2.1, legend, note, len(groups) - len(drawn))


def _chosen(deepest: float) -> list[int]:
    """At most seven evenly spaced layers, including the first and the last."""
    count = min(MOST_LAYERS, int(deepest) + 1)
    return sorted({round(i * deepest / max(1, count - 1)) for i in range(count)})


def _color(layer: float, deepest: float) -> Any:
    """A colour from light to dark with depth, an order visible in grey and with any colour
    vision."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 - 0.9 * layer / max(1.0, deepest))


def _layers(panel: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The colour and the lines of each chosen layer, by frequency."""
    deepest = panel["layer"].max()
    for layer in _chosen(deepest):
        yield _color(layer, deepest), panel[panel["layer"] == layer].sort_values("frequency")


def _paint_amplitude(panel: pd.DataFrame, axes: Axes) -> None:
    for color, mine in _layers(panel):
        axes.plot(mine["frequency"], mine["power"] ** 0.5, color=color, linewidth=0.9)
    sheet.parity(axes, "y")
    shown = panel[panel["layer"].isin(_chosen(panel["layer"].max()))]
    ticks.log_axis(
        axes, "y", shown["power"].min() ** 0.5 / 1.15, shown["power"].max() ** 0.5 * 1.15
    )
    axes.set_xlim(0, 0.5)
    axes.set_xlabel("frequency, cycles / token")
    axes.set_ylabel("amplitude, relative")


def _paint_share(panel: pd.DataFrame, axes: Axes) -> None:
    for color, mine in _layers(panel):
        share = mine["power"].cumsum() / mine["power"].sum() * 100
        kept = (mine["frequency"] + mine["frequency"].iloc[0]) / 0.5
        axes.plot([0, *kept], [0, *share], color=color, linewidth=0.9)
    axes.plot([0, 1], [0, 100], color=looks.GREY, linewidth=0.6, dashes=(3, 2), zorder=1)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 102)
    axes.set_xlabel("share of the frequencies kept, lowest first")
    axes.set_ylabel("share of the power, %")
