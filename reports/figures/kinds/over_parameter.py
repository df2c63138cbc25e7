"""Quality as a parameter changes: against a cost, against the share of kept frequencies, and for
several models against the bytes of their caches.

VCC's Figures 5 and 8 (runtime, WikiHop), IceFormer's Figure 4 (time of the attention, LRA), Fourier
Transformer's Figure 3 (official metrics against r), and models at equal bytes of keys and values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from reports import looks
from reports.figures import captions, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import SETTING, FigureRows, records
from reports.looks import VANILLA, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 1 << 20
LINES = ("-", "--", ":", "-.")
TASK = tuple(name for name in SETTING if name != "model")
METRIC_LOOKS = (
    Look(looks.BLUE, "o"), Look(looks.RED, "s"), Look(looks.GREEN, "^"), Look(looks.PINK, "D"),
    Look(looks.ORANGE, "v"), Look(looks.SKY, "P"),
)  # fmt: skip


class Across(NamedTuple):
    """The horizontal axis: a column of costs, which have a log scale, or a parameter."""

    column: str
    label: str
    unit: float = 1.0
    log: bool = True


RUNTIME = Across("lat_median_ns", "latency, ms", 1e6)
ATTENTION = Across("attend_ns", "time of the attention, ms", 1e6)
HELD = Across("kv_bytes_held", "KV cache, MiB", MIB)
READ = Across("kv_bytes_read_per_token", "KV read for a token, MiB", MIB)
KEPT = Across("r", "r, share of the frequencies kept", log=False)


class Point(NamedTuple):
    """A point of one `line`: key, colour and dashes. `bar` is its interval, empty without one."""

    line: tuple[str, str, Any]
    x: float
    y: float
    look: Look
    label: str = ""
    bar: tuple[float, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """The shared settings of a figure's panels. `level` gives dashed lines, (height, colour), `up`
    the label of the vertical axis."""

    across: Across
    points: Callable[[pd.DataFrame], Iterator[Point]]
    level: Callable[[pd.DataFrame], list[tuple[float, str]]] = lambda panel: []
    up: Callable[[pd.DataFrame], str] = captions.quality

    def paint(self, panel: pd.DataFrame, axes: Axes) -> list[sheet.Label]:
        points = list(self.points(panel))
        for line in dict.fromkeys(point.line for point in points):
            mine = sorted((p.x, p.y) for p in points if p.line == line)
            _, color, dashes = line
            axes.plot(
                *zip(*mine, strict=True), color=color, linewidth=0.9, linestyle=dashes, zorder=2
            )
        for point in points:
            axes.plot(
                [point.x] * len(point.bar), point.bar, color=point.look.color, linewidth=0.7,
                alpha=0.7, zorder=1,
            )  # fmt: skip
            sheet.points(axes, point.x, point.y, point.look)
        for height, color in self.level(panel):
            axes.axhline(height, color=color, linewidth=0.8, linestyle="--")
        x = [point.x for point in points]
        if self.across.log:
            room = (max(x) / min(x)) ** 0.12 * 1.1
            ticks.log_axis(axes, "x", min(x) / room, max(x) * room)
        else:
            axes.set_xlim(0, max(1.0, *x) * 1.04)
        axes.set_xlabel(self.across.label)
        axes.set_ylabel(self.up(panel))
        ticks.score_axis(axes, captions.percent(panel))
        return [(point.label, point.x, point.y) for point in points if point.label]


def _known(rows: FigureRows, across: Across) -> pd.DataFrame:
    """The cells with a score and a position on the axis, which is in the column `x`."""
    cells = rows.cells[rows.cells["value"].notna() & rows.cells[across.column].gt(0)]
    return cells.assign(x=cells[across.column].astype(float) / across.unit)


def _bar(cell: Any) -> tuple[float, ...]:
    bounded = pd.notna(cell.ci_lo) and pd.notna(cell.ci_hi)
    return (cell.ci_lo, cell.ci_hi) if bounded else ()


# --- a method's variants ------------------------------------------------------------------------


@figure(
    "vcc_5",
    "VCC Fig. 5 and 8: quality against latency over a method's parameters",
    "a method with two or more variants (method.NAME=…) on wikihop or any task",
)
def runtime(rows: FigureRows, most: int) -> sheet.Plot | None:
    """WikiHop if it was measured, as in the paper; otherwise any task that has variants."""
    wikihop = _variants(rows.where(task="wikihop"), most, RUNTIME, 2, 2.1)
    return wikihop or _variants(rows, most, RUNTIME, 2, 2.1)


@figure(
    "iceformer_4",
    "IceFormer Fig. 4: accuracy on LRA against time, over k",
    "iceformer with two or more variants (method.NAME=…) on a task of LRA",
)
def attention(rows: FigureRows, most: int) -> sheet.Plot | None:
    """The tasks of LRA, with only IceFormer and vanilla."""
    searches = [name for name in rows.names if name.partition("·")[0] == "iceformer"]
    lra = rows.where(benchmark="lra", method=[*searches, VANILLA])
    return _variants(lra, most, ATTENTION, 3, 1.8)


def _variants(
    rows: FigureRows, most: int, across: Across, columns: int, height_in: float
) -> sheet.Plot | None:
    known = _known(rows, across)
    some = replace(rows, cells=known).settings(
        "length", having=known["value"].notna(), apart="method_params", of=("method",)
    )
    if not some:
        return None
    drawn = sorted(some[:most], key=lambda p: (p["task"].iloc[0], p["length"].iloc[0]))
    rows = rows.emphasised(drawn)
    drawing = Drawing(across, partial(_variant_points, rows))
    panels = [captions.panel(p, partial(drawing.paint, p), "length", "scores") for p in drawn]
    note = (
        "Bars: 95 % intervals. A line joins one method's variants; labels name their differences."
    )
    return sheet.Plot(
        panels, columns, height_in, captions.legend(rows, drawn), note, len(some) - len(drawn)
    )


def _variant_points(rows: FigureRows, panel: pd.DataFrame) -> Iterator[Point]:
    for name, label, cells in rows.arms(panel):
        look = rows.looks[name]
        # A line joins variants that differ only in numbers.
        kind = " ".join(word for word in label.split() if "=" not in word)
        line = (f"{name} {kind}", look.color, style.line(look.line))
        for cell in records(cells):
            yield Point(line, cell.x, cell.value, look, label, _bar(cell))


# --- models at equal bytes ----------------------------------------------------------------------

TWO_MODELS = "rows of two models on one task and length, each with quality and decoding"


def models(rows: FigureRows, most: int, across: Across) -> sheet.Plot | None:
    """Panels for each task and length with at least two models, one of which has a cache other than
    vanilla's."""
    known = _known(rows, across)
    known = known[~known["method"].isin(rows.oracles)]  # they hold and read everything
    groups = known.groupby([*TASK, "length"], dropna=False, sort=True, observed=True)
    several = [group for _, group in groups if group["model"].nunique() > 1]
    some = [group for group in several if (group["method"] != VANILLA).any()]
    if not some:
        return None
    rows = rows.emphasised(some[:most])
    models = sorted({str(model) for panel in some[:most] for model in panel["model"]})
    dashes = {model: LINES[i % len(LINES)] for i, model in enumerate(models)}
    drawing = Drawing(across, partial(_model_points, rows, dashes))
    panels = []
    for panel in some[:most]:
        task, _, length = captions.title(panel, "length")
        paint = partial(drawing.paint, panel)
        panels.append(sheet.Panel([task, length], captions.facts(panel), paint))
    legend: list[sheet.LegendEntry] = [
        (sheet.dashed(looks.GREY, kind), model) for model, kind in dashes.items()
    ]
    note = (
        "Lines join a model's caches: on a vertical line two models cost the same, and the higher "
        "one is the better use of these bytes."
    )
    return sheet.Plot(panels, 2, 2.1, legend, note, len(some) - most)


for _name, _shows, _across in (
    ("iso_cost", "quality of models against the bytes that their KV caches hold", HELD),
    ("iso_cost_read", "quality of models against the KV bytes read for each new token", READ),
):
    figure(_name, _shows, TWO_MODELS)(partial(models, across=_across))


def _model_points(rows: FigureRows, dashes: dict[str, str], panel: pd.DataFrame) -> Iterator[Point]:
    for cell in records(panel):
        model = str(cell.model)
        label = model if cell.method == VANILLA else cell.method
        line = (model, looks.GREY, dashes[model])
        yield Point(line, cell.x, cell.value, rows.looks[cell.method], label)


# --- official metrics over r --------------------------------------------------------------------


@figure(
    "fourier_3",
    "Fourier Fig. 3: quality against r",
    "fourier with two or more values of method.r on eli5 or any task",
)
def retained(rows: FigureRows, most: int) -> sheet.Plot | None:
    """ELI5 if it was measured, as in the paper; otherwise other tasks."""
    some = _with_r(rows.where(task="eli5")) or _with_r(rows)
    if not some:
        return None
    drawn = some[:most]
    names = dict.fromkeys(name for p in drawn for cell in records(p) for name in _metrics(cell))
    of_metric = dict(zip(names, METRIC_LOOKS, strict=False))
    points, level = partial(_metric_points, of_metric), partial(_vanilla, of_metric)
    drawing = Drawing(KEPT, points, level, lambda p: "score" + ", %" * captions.percent(p))
    legend: list[sheet.LegendEntry] = [
        (sheet.mark(look, line="-"), style.tidy(name)) for name, look in of_metric.items()
    ]
    legend.append((sheet.dashed(looks.GREY), "vanilla"))
    panels = [captions.panel(p, partial(drawing.paint, p), "length", "scores") for p in drawn]
    note = "Bars: 95 % interval of the main metric. Dashed: vanilla, in the metric's colour."
    return sheet.Plot(panels, 2, 2.1, legend, note, len(some) - len(drawn))


def _with_r(rows: FigureRows) -> Sequence[pd.DataFrame]:
    cells = rows.where(method=["fourier", VANILLA]).cells
    cells = cells[cells["value"].notna()]
    if cells.empty:
        return []
    kept = [
        json.loads(params).get("r") if method == "fourier" else None
        for method, params in zip(cells["method"], cells["method_params"], strict=True)
    ]
    cells = cells.assign(r=pd.Series(kept, cells.index, dtype=float))
    having = cells["value"].notna()
    return replace(rows, cells=cells).settings("length", having=having, apart="r")


def _metrics(cell: Any) -> dict[str, float]:
    """A cell's official metrics, the main one first."""
    found = json.loads(cell.metrics) if isinstance(cell.metrics, str) else {}
    numbers = {
        name: value
        for name, value in found.items()
        if name not in ("value", "n") and isinstance(value, int | float)
    }
    return {cell.metric: cell.value} | numbers | {cell.metric: cell.value}


def _metric_points(of_metric: dict[str, Look], panel: pd.DataFrame) -> Iterator[Point]:
    for cell in records(panel[panel["r"].notna()]):
        for name, value in _metrics(cell).items():
            if look := of_metric.get(name):
                bar = _bar(cell) if name == cell.metric else ()
                yield Point((name, look.color, "-"), cell.r, value, look, bar=bar)


def _vanilla(of_metric: dict[str, Look], panel: pd.DataFrame) -> list[tuple[float, str]]:
    """Vanilla's figures with the colours of their metrics."""
    cells = panel[panel["method"] == VANILLA]
    figures = _metrics(next(records(cells))) if len(cells) else {}
    return [(figures[name], look.color) for name, look in of_metric.items() if name in figures]
