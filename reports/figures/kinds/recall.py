"""IceFormer's Figure 3: recall of k-NN searches against the time to build and to ask."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from bench.host.host import short_host
from bench.units import counted
from reports import looks
from reports.figures import sheet, studies, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUMBERS = (
    "total_ns",
    "total_min_ns",
    "total_max_ns",
    "recall",
    "keys",
    "queries",
    "dims",
    "k",
    "threads",
)
SAME = ("host_id", "threads", "data", "metric", "keys", "queries", "dims", "k")
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
def plot(rows: FigureRows, most: int) -> sheet.Plot | None:
    read = studies.read(rows.folder, "recall", NUMBERS)
    if read.empty or not read["recall"].notna().any():
        return None
    read = read[read["recall"].notna()]
    # Of a search measured twice in one setting, the newest file counts.
    read = read.drop_duplicates([*SAME, "search", "parameters"])
    groups = [group for _, group in read.groupby(list(SAME), dropna=False, sort=False)]
    groups.sort(key=lambda group: (-group["keys"].iloc[0], str(group["data"].iloc[0])))
    drawn = groups[:most]
    names = [name for name in _ordered(read) if any(name in set(p["search"]) for p in drawn)]
    legend: list[sheet.LegendEntry] = [
        (sheet.mark(looks.Look(*_look(name), 0)), style.tidy(NAMES.get(name, name)))
        for name in names
    ]
    panels = [sheet.Panel(_title(p), _facts(p), partial(paint, p)) for p in drawn]
    note = (
        "Time to build the index and to ask all queries; bars: the fastest and the slowest run. A "
        "line joins one search over its effort. Right and below is better."
    )
    return sheet.Plot(panels, 2, 2.2, legend, note, len(groups) - len(drawn))


def _ordered(read: pd.DataFrame) -> list[str]:
    here = set(read["search"])
    return [*(name for name in LOOKS if name in here), *sorted(here - set(LOOKS))]


def _look(name: str) -> tuple[str, str]:
    if name in LOOKS:
        return LOOKS[name]
    look = looks.looks([name])[name]
    return look.color, look.marker


def _title(panel: pd.DataFrame) -> list[str]:
    one = panel.iloc[0]
    return [str(one["data"]), f"{one['keys']:,.0f} keys of {one['dims']:,.0f}"]


def _facts(panel: pd.DataFrame) -> list[str]:
    one = panel.iloc[0]
    found = [
        f"{one['queries']:,.0f} queries",
        f"{one['k']:.0f} nearest by {METRICS[one['metric']]}",
    ]
    found.append(counted(round(one["threads"]), "thread"))
    host = " ".join(filter(None, (one["cpu_model"], short_host(one["host_id"]))))
    return [*found, sheet.Own(host)]


def paint(panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
    axes.set_yscale("log")
    for name in _ordered(panel):
        mine = panel[panel["search"] == name].sort_values("recall")
        color, marker = _look(name)
        axes.vlines(
            mine["recall"],
            mine["total_min_ns"] / 1e9,
            mine["total_max_ns"] / 1e9,
            color,
            linewidth=0.8,
        )
        axes.plot(
            mine["recall"], mine["total_ns"] / 1e9, linestyle="-", **sheet.marks(color, marker)
        )
    low, high = panel["total_min_ns"].min() / 1.3e9, panel["total_max_ns"].max() * 1.3 / 1e9
    ticks.log_axis(axes, "y", low, high)
    least = min(0.9, float(panel["recall"].min()))
    axes.set_xlim(least - 0.04 * (1 - least), 1 + 0.04 * (1 - least))
    axes.set_xlabel(f"recall of the {panel['k'].iloc[0]:.0f} nearest")
    axes.set_ylabel("time, s")
    return []
