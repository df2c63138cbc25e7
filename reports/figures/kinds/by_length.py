"""Latency and memory against length: exponents, crossovers, held-out predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from reports.figures import captions, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows, failures
from reports.figures.statistics import Interval, crossover, held_out, power_law
from reports.looks import VANILLA, base_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("method", "method_params", "length", "lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi")
HEAD = ("", "exponent", "predicted", "below vanilla from")


class Cost(NamedTuple):
    """A column drawn against length, in a unit; `ratio` is its ratio to vanilla. One that `drifts`
    from hour to hour is drawn for a method as vanilla's × the method's paired ratio, so that its
    curve crosses vanilla's where the ratio crosses 1."""

    column: str
    scale: float
    label: str
    ratio: str
    drifts: bool


LATENCY = Cost("lat_median_ns", 1e-6, "latency, ms", "lat_ratio", drifts=True)
MEMORY = Cost("peak_bytes", 1 / (1 << 20), "peak memory, MiB", "mem_ratio", drifts=False)


MOST_LINES = 14
"""A longer table would be longer than its plot."""


def plot(rows: FigureRows, most: int, cost: Cost) -> sheet.Plot | None:
    some = at_lengths(rows, cost)
    if not some:
        return None
    drawn = some[:most]
    panels = [
        sheet.Panel(
            captions.title(p),
            captions.facts(p),
            partial(paint, rows, p, cost),
            table(rows, p, cost),
        )
        for p in drawn
    ]
    legend = captions.failures(how for p in drawn for how in failures(p, cost.column)["failed"])
    note = "Exponent: power law through all lengths, with its 95 % interval."
    if any(predicts(rows, panel, cost) for panel in drawn):
        legend.append((sheet.mark(None, "hollow", ":"), "predicted"))
        note += (
            " Predicted: the longest length extrapolated from the shorter ones, against what was "
            "measured there (dotted line, hollow mark; * outside the 95 % interval)."
        )
    if cost.drifts:
        note += f" A method's {cost.label.partition(',')[0]} is vanilla's × its paired ratio."
    note += (
        " Below vanilla from: the length at which the ratio to vanilla falls below 1, with its "
        "interval."
    )
    return sheet.Plot(panels, 2, 2.0, legend, note, len(some) - most)


for _cost in (LATENCY, MEMORY):
    _name = _cost.label.partition(",")[0]
    figure(
        f"{_name.split()[-1]}_by_length",
        f"{_name} against length",
        "one method at two lengths or more, in one setting",
    )(partial(plot, cost=_cost))


def at_lengths(rows: FigureRows, cost: Cost) -> Sequence[pd.DataFrame]:
    """The settings in which one arm or more was measured at two lengths or more."""
    measured = rows.cells[cost.column].gt(0)
    return rows.settings(having=measured, apart="length", of=("method", "method_params"))


def reached(panel: pd.DataFrame, cost: Cost) -> set[float]:
    """The lengths of which something is known: a figure, or that the cell failed."""
    known = panel[cost.column].gt(0) | panel["failed"].notna()
    return set(panel.loc[known, "length"])


def predicts(rows: FigureRows, panel: pd.DataFrame, cost: Cost) -> bool:
    """Whether the longest length can be predicted from the shorter ones."""
    arms = measured(rows, panel, cost)
    return any(held_out(cells["length"], cells["y"]) is not None for _, _, cells in arms)


def means(cells: pd.DataFrame, column: str) -> pd.Series[float]:
    """By length, the geometric mean of what was measured there."""
    found = cells.groupby("length")[column].apply(lambda y: math.exp(np.log(y).mean()))
    return cast("pd.Series[float]", found)


def measured(
    rows: FigureRows, panel: pd.DataFrame, cost: Cost
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(method, variant, cells by length with the cost in `y`)."""
    base = means(panel[(panel["method"] == VANILLA) & panel[cost.column].gt(0)], cost.column)
    names = dict.fromkeys((*NEEDED, cost.column, cost.ratio))
    panel = panel.loc[panel[cost.column].gt(0), list(names)].sort_values("length")
    curves = panel.groupby(["method", "method_params"])["length"].transform("nunique")
    for name, label, cells in rows.arms(panel[curves > 1]):
        values = cells[cost.column].astype(float)
        if cost.drifts and name != VANILLA:
            values = (cells["length"].map(base) * cells[cost.ratio].astype(float)).fillna(values)
        yield name, label, cells.assign(y=values * cost.scale)


def paint(rows: FigureRows, panel: pd.DataFrame, cost: Cost, axes: Axes) -> list[sheet.Label]:
    costs: list[float] = []
    axes.set_yscale("log")
    arms = list(measured(rows, panel, cost))
    own = _foremost(arms)
    for (name, _, cells), dashes in zip(arms, lines_of(rows, arms), strict=True):
        look = rows.looks[name]
        mean = means(cells, "y")
        costs += list(cells["y"])
        if base_name(name) not in own:
            axes.plot(mean.index, mean, color=style.OTHERS.color, linewidth=0.7, zorder=2)
            continue
        axes.plot(mean.index, mean, color=look.color, linestyle=dashes, zorder=3)
        axes.plot(
            cells["length"],
            cells["y"],
            linestyle="",
            **sheet.marks(look.color, look.marker),
            zorder=4,
        )
        if (prediction := held_out(cells["length"], cells["y"])) is not None:
            law = power_law(*_shorter(cells))
            assert law is not None
            x = [mean.index[-2], prediction.length]
            axes.plot(x, [law.at(v) for v in x], color=look.color, linestyle=":", linewidth=0.8)
            sheet.points(axes, prediction.length, prediction.predicted, look, "hollow", zorder=5)
            costs.append(prediction.predicted)
    low, high = min(costs) / 1.4, max(costs) * 1.4
    if ended := ends(rows, panel, cost):  # their marks stand above all that was measured
        high = low * (high / low) ** (1 / (1 - 0.05 - _step(ended) * _most(ended)))
    ticks.log_axis(axes, "y", low, high)
    ticks.length_axis(axes, reached(panel, cost))
    axes.set_ylabel(cost.label)
    _edge(rows, panel, cost, axes)
    return []


def _foremost(arms: Sequence[tuple[str, str, pd.DataFrame]]) -> frozenset[str]:
    """Vanilla, then the methods that go furthest, the cheapest there first."""

    def place(arm: tuple[str, str, pd.DataFrame]) -> tuple[bool, float, float]:
        mean = means(arm[2], "y")
        return arm[0] != VANILLA, -mean.index[-1], mean.iloc[-1]

    return style.foremost(name for name, _, _ in sorted(arms, key=place))


def lines_of(rows: FigureRows, arms: Sequence[tuple[str, str, pd.DataFrame]]) -> list[Any]:
    """The line of each curve: no two of one colour have the same, and a method's first is its own
    wherever it is drawn alone."""
    taken: dict[str, set[int]] = {}
    found = []
    for name, _, _ in arms:
        look = rows.looks[name]
        of_color = taken.setdefault(look.color, set())
        number = look.line
        while number in of_color and len(of_color) < len(style.LINE_STYLES):
            number = (number + 1) % len(style.LINE_STYLES)
        of_color.add(number)
        found.append(style.line(number))
    return found


def _shorter(cells: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    kept = cells[cells["length"] < cells["length"].max()]
    return kept["length"], kept["y"]


def _edge(rows: FigureRows, panel: pd.DataFrame, cost: Cost, axes: Axes) -> None:
    """Methods that failed, at the top of their length; one below the other where several did."""
    met: dict[float, int] = {}
    ended = ends(rows, panel, cost)
    for name, length, how in ended:
        place = met[length] = met.get(length, -1) + 1
        kind = style.TIMEOUT if how == "timeout" else style.OOM
        axes.plot(
            length, 0.955 - _step(ended) * place, linestyle="",
            transform=axes.get_xaxis_transform(),
            **sheet.marks(rows.looks[name].color, "o", kind), zorder=6, clip_on=False,
        )  # fmt: skip


End = tuple[str, float, str]
"""A method, a length, and how the method ended there."""


def ends(rows: FigureRows, panel: pd.DataFrame, cost: Cost) -> list[End]:
    """Each method that failed at a length once, however many of its seeds or variants did."""
    return list(
        dict.fromkeys(
            (name, length, how)
            for name, _, cells in rows.arms(failures(panel, cost.column))
            for length, how in zip(cells["length"], cells["failed"], strict=True)
        )
    )


def _most(ended: Sequence[End]) -> int:
    """The greatest number of marks at one length."""
    lengths = [length for _, length, _ in ended]
    return max(map(lengths.count, lengths))


def _step(ended: Sequence[End]) -> float:
    """From one mark to the next, as a share of the axis: all of them take a third of it at most."""
    return min(0.075, 0.33 / _most(ended))


def table(rows: FigureRows, panel: pd.DataFrame, cost: Cost) -> list[tuple[sheet.LegendEntry, ...]]:
    """A line for each curve: exponent, the held-out length where there is one, the crossover."""
    lines: list[tuple[sheet.LegendEntry, ...]] = []
    last = panel.loc[panel[cost.column].notna(), "length"].max()
    arms = list(measured(rows, panel, cost))
    own = _foremost(arms)
    others = [name for name, _, _ in arms if base_name(name) not in own]
    for (name, label, cells), line in zip(arms, lines_of(rows, arms), strict=True):
        if base_name(name) not in own:
            continue
        law, prediction = (
            power_law(cells["length"], cells["y"]),
            held_out(cells["length"], cells["y"]),
        )
        exponent = f"{law.exponent:.2f} ({law.lo:.2f}…{law.hi:.2f})" if law else "–"
        exponent = exponent.replace("-", "−")
        predicted = f"{prediction.error_pct:+.0f} %".replace("-", "−") if prediction else "–"
        if prediction and not prediction.lo <= prediction.measured <= prediction.hi:
            predicted += "*"
        if prediction and round(prediction.length) != last:
            predicted += f" ({ticks.thousands(prediction.length)})"
        variant = style.tidy(f"{name} {label}".strip(), 20)
        mark = sheet.mark(rows.looks[name], line=line)
        cross = "" if name == VANILLA else _crossover(cells, cost)
        lines.append(((mark, variant), (None, exponent), (None, predicted), (None, cross)))
    head = [(None, word) for word in HEAD]
    head[2] = (None, f"{HEAD[2]} {ticks.thousands(last)}")
    left = max(0, len(lines) - MOST_LINES + 1)
    lines = lines[: len(lines) - left]
    if left or others:
        more = f"… and {left + len(others)} more (grey): choose with method=NAME"
        lines.append(((None, more), *[(None, "")] * (len(HEAD) - 1)))
    found = [tuple(head), *lines]
    return found if predicts(rows, panel, cost) else [(*line[:2], line[3]) for line in found]


def _crossover(cells: pd.DataFrame, cost: Cost) -> str:
    lengths, ratios = ratios_by_length(cells, cost)
    found = crossover(lengths, ratios) if lengths else None
    if found is None:
        return "not yet" if lengths else "–"
    at, low, high = (_end_text(end, lengths[0]) for end in found)
    return at if at == low == high else f"{at} ({low}…{high})"


def _end_text(end: float, shortest: float) -> str:
    """An end of a crossover; "?" where no measured length is long enough."""
    if math.isinf(end):
        return "?"
    return f"{_round(end):,}" if end else f"≤ {shortest:,.0f}"


def _round(length: float) -> int:
    """Two digits: an interpolated length has no more."""
    digits = max(0, math.floor(math.log10(length)) - 1)
    return int(round(length / 10**digits) * 10**digits)


def ratios_by_length(cells: pd.DataFrame, cost: Cost) -> tuple[list[float], list[Interval]]:
    """Ratios to vanilla, lengths rising; of several at one length the geometric mean, within the
    widest of their intervals."""
    cells = cells[cells[cost.ratio].gt(0)]
    lengths, found = [], []
    for length, group in cells.groupby("length"):
        value = math.exp(float(np.log(group[cost.ratio].astype(float)).mean()))
        low, high = value, value
        if cost.ratio == "lat_ratio":
            low = float(group["lat_ratio_ci_lo"].fillna(0.0).min())
            high = float(group["lat_ratio_ci_hi"].fillna(math.inf).max())
        lengths.append(float(length))  # type: ignore[arg-type]
        found.append(Interval(value, low, high))
    return lengths, found
