"""Latency and memory against length: exponents, crossovers, held-out predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from reports.figures import captions, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows, failures
from reports.figures.costs import LATENCY, MEMORY, Cost
from reports.figures.statistics import HeldOut, Interval, crossover, held_out, power_law
from reports.looks import VANILLA, base_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("method", "method_params", "length", "lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi")
HEAD = ("", "exponent", "predicted", "below vanilla from")


MOST_LINES = 14
"""A longer table would be longer than its plot."""


def plot(rows: FigureRows, most: int, cost: Cost) -> sheet.Plot | None:
    some = at_lengths(rows, cost)
    if not some:
        return None
    drawn = some[:most]
    curves_of = [curves(rows, panel, cost) for panel in drawn]
    panels = [
        captions.panel(
            panel, partial(paint, rows, panel, cost, own), table=table(rows, panel, cost, own)
        )
        for panel, own in zip(drawn, curves_of, strict=True)
    ]
    legend = captions.failures(how for p in drawn for how in failures(p, cost.absolute)["failed"])
    note = "Exponent: power law through all lengths, with its 95 % interval."
    if any(map(predicted, curves_of)):
        legend.append((sheet.mark(None, "hollow", ":"), "predicted"))
        note += (
            " Predicted: the longest length extrapolated from the shorter ones, against what was "
            "measured there (dotted line, hollow mark; * outside the 95 % interval)."
        )
    if cost.is_time:
        note += f" A method's {cost.label} is vanilla's × its paired ratio."
    note += (
        " Below vanilla from: the length at which the ratio to vanilla falls below 1, with its "
        "interval."
    )
    return sheet.Plot(panels, 2, 2.0, legend, note, len(some) - most)


for _cost in (LATENCY, MEMORY):
    figure(
        f"{_cost.name}_by_length",
        f"{_cost.label} against length",
        "one method at two lengths or more, in one setting",
    )(partial(plot, cost=_cost))


def at_lengths(rows: FigureRows, cost: Cost) -> Sequence[pd.DataFrame]:
    """The settings in which at least one arm was measured at two or more lengths."""
    measured = rows.cells[cost.absolute].gt(0)
    return rows.settings(having=measured, apart="length", of=("method", "method_params"))


def reached(panel: pd.DataFrame, cost: Cost) -> set[float]:
    """The lengths with a figure or a failed cell."""
    known = panel[cost.absolute].gt(0) | panel["failed"].notna()
    return set(panel.loc[known, "length"])


def means(cells: pd.DataFrame, column: str) -> pd.Series[float]:
    """By length, the geometric mean of the measurements."""
    found = cells.groupby("length")[column].apply(lambda y: math.exp(np.log(y).mean()))
    return cast("pd.Series[float]", found)


@dataclass(frozen=True)
class Curve:
    """A method's variant at several lengths: its cells by length, with the cost in column `y`, and
    the style of its line."""

    method: str
    label: str
    cells: pd.DataFrame
    line: Any

    @cached_property
    def mean(self) -> pd.Series[float]:
        return means(self.cells, "y")

    @cached_property
    def prediction(self) -> HeldOut | None:
        return held_out(self.cells["length"], self.cells["y"])


def curves(rows: FigureRows, panel: pd.DataFrame, cost: Cost) -> list[Curve]:
    """The curves of a panel in the order of legends. No two curves of one colour have the same line
    style, and a method's first style is the one it has when drawn alone."""
    base = means(panel[(panel["method"] == VANILLA) & panel[cost.absolute].gt(0)], cost.absolute)
    names = dict.fromkeys((*NEEDED, cost.absolute, cost.ratio))
    panel = panel.loc[panel[cost.absolute].gt(0), list(names)].sort_values("length")
    lengths = panel.groupby(["method", "method_params"])["length"].transform("nunique")
    taken: dict[str, set[int]] = {}
    found = []
    for name, label, cells in rows.arms(panel[lengths > 1]):
        values = cells[cost.absolute].astype(float)
        if cost.is_time and name != VANILLA:
            values = (cells["length"].map(base) * cells[cost.ratio].astype(float)).fillna(values)
        look = rows.looks[name]
        of_color = taken.setdefault(look.color, set())
        number = look.line
        while number in of_color and len(of_color) < len(style.LINE_STYLES):
            number = (number + 1) % len(style.LINE_STYLES)
        of_color.add(number)
        found.append(Curve(name, label, cells.assign(y=values * cost.scale), style.line(number)))
    return found


def predicted(curves: Sequence[Curve]) -> bool:
    """Whether the longest length of any curve can be predicted from its shorter ones."""
    return any(curve.prediction for curve in curves)


def foremost(curves: Sequence[Curve]) -> frozenset[str]:
    """Vanilla, then the methods with the longest inputs, the cheapest there first."""

    def place(curve: Curve) -> tuple[bool, float, float]:
        return curve.method != VANILLA, -curve.mean.index[-1], curve.mean.iloc[-1]

    return style.foremost(curve.method for curve in sorted(curves, key=place))


def paint(
    rows: FigureRows, panel: pd.DataFrame, cost: Cost, curves: Sequence[Curve], axes: Axes
) -> None:
    costs: list[float] = []
    own = foremost(curves)
    for curve in curves:
        look, mean, cells = rows.looks[curve.method], curve.mean, curve.cells
        costs += list(cells["y"])
        if base_name(curve.method) not in own:
            axes.plot(mean.index, mean, color=style.OTHERS.color, linewidth=0.7, zorder=2)
            continue
        axes.plot(mean.index, mean, color=look.color, linestyle=curve.line, zorder=3)
        sheet.points(axes, cells["length"], cells["y"], look)
        if (prediction := curve.prediction) is not None:
            x = [mean.index[-2], prediction.length]
            y = [prediction.law.at(length) for length in x]
            axes.plot(x, y, color=look.color, linestyle=":", linewidth=0.8)
            sheet.points(axes, prediction.length, prediction.predicted, look, "hollow", zorder=5)
            costs.append(prediction.predicted)
    low, high = min(costs) / 1.4, max(costs) * 1.4
    if ended := ends(rows, panel, cost):  # their marks are above all measurements
        lengths = [length for _, length, _ in ended]
        most = max(map(lengths.count, lengths))
        step = min(0.075, 0.33 / most)  # as a share of the axis; together at most a third
        high = low * (high / low) ** (1 / (1 - 0.05 - step * most))
        met: Counter[float] = Counter()
        for name, length, how in ended:  # one below the other
            height, color = 0.955 - step * met[length], rows.looks[name].color
            at = axes.get_xaxis_transform()
            sheet.failure(axes, length, height, how, color, transform=at, zorder=6)
            met[length] += 1
    ticks.log_axis(axes, "y", low, high)
    ticks.length_axis(axes, reached(panel, cost))
    axes.set_ylabel(f"{cost.label}, {cost.unit}")


End = tuple[str, float, str]
"""A method, a length, and how the method ended there."""


def ends(rows: FigureRows, panel: pd.DataFrame, cost: Cost) -> list[End]:
    """Each method that failed at a length, once for all seeds and variants."""
    return list(
        dict.fromkeys(
            (name, length, how)
            for name, _, cells in rows.arms(failures(panel, cost.absolute))
            for length, how in zip(cells["length"], cells["failed"], strict=True)
        )
    )


def table(
    rows: FigureRows, panel: pd.DataFrame, cost: Cost, curves: Sequence[Curve]
) -> list[tuple[sheet.LegendEntry, ...]]:
    """A line for each curve: exponent, held-out length if any, crossover."""
    last = panel.loc[panel[cost.absolute].notna(), "length"].max()
    head = [*HEAD[:2], f"{HEAD[2]} {ticks.thousands(last)}", HEAD[3]]
    lines: list[tuple[sheet.LegendEntry, ...]] = [tuple((None, word) for word in head)]
    own = foremost(curves)
    shown = [curve for curve in curves if base_name(curve.method) in own][: MOST_LINES - 1]
    for curve in shown:
        law = power_law(curve.cells["length"], curve.cells["y"])
        exponent = f"{law.exponent:.2f} ({law.lo:.2f}…{law.hi:.2f})" if law else "–"
        texts = (exponent.replace("-", "−"), _prediction(curve.prediction, last))
        mark = sheet.mark(rows.looks[curve.method], line=curve.line)
        variant = style.tidy(f"{curve.method} {curve.label}".strip(), 20)
        cross = "" if curve.method == VANILLA else _crossover(curve.cells, cost)
        lines.append(((mark, variant), *((None, text) for text in (*texts, cross))))
    if left := len(curves) - len(shown):
        more = f"… and {left} more (grey): choose with method=NAME"
        lines.append(((None, more), *[(None, "")] * (len(HEAD) - 1)))
    return lines if predicted(curves) else [(*line[:2], line[3]) for line in lines]


def _prediction(prediction: HeldOut | None, last: float) -> str:
    """The error of a prediction, with a star if it is outside its interval, and with its length
    unless that is the last."""
    if prediction is None:
        return "–"
    text = f"{prediction.error_pct:+.0f} %".replace("-", "−")
    if not prediction.lo <= prediction.measured <= prediction.hi:
        text += "*"
    if round(prediction.length) != last:
        text += f" ({ticks.thousands(prediction.length)})"
    return text


def _crossover(cells: pd.DataFrame, cost: Cost) -> str:
    lengths, ratios = ratios_by_length(cells, cost)
    found = crossover(lengths, ratios) if lengths else None
    if found is None:
        return "not yet" if lengths else "–"
    at, low, high = (_end_text(end, lengths[0]) for end in found)
    return at if at == low == high else f"{at} ({low}…{high})"


def _end_text(end: float, shortest: float) -> str:
    """An end of a crossover; "?" if no measured length is long enough."""
    if math.isinf(end):
        return "?"
    return ticks.thousands(_round(end)) if end else f"≤ {ticks.thousands(shortest)}"


def _round(length: float) -> int:
    """A length to two digits, the precision of an interpolation."""
    digits = max(0, math.floor(math.log10(length)) - 1)
    return int(round(length / 10**digits) * 10**digits)


def ratios_by_length(cells: pd.DataFrame, cost: Cost) -> tuple[list[float], list[Interval]]:
    """Ratios to vanilla by rising length; several at one length become their geometric mean with
    the widest of their intervals."""
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
