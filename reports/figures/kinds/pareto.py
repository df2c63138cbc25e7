"""Quality against latency, memory and the cost of a cache of keys and values, with the Pareto front
and its uncertainty. Oracles are never on a front: a dashed grey line shows their quality at their
budget, or across the panel if the axis doesn't show budgets."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from reports import looks
from reports.figures import captions, sheet, style, ticks
from reports.figures.catalogue import figure
from reports.figures.cells import FigureRows, failures, interval, records, spread
from reports.figures.costs import KV_HELD, KV_READ, LATENCY, MEMORY, PROCESS, TPOT, Cost
from reports.figures.statistics import Interval, ParetoPoint, Standing, standings
from reports.looks import VANILLA
from reports.rows import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMORY_REPEATS = 0.01
"""Peak memory repeats within 1 %."""
KIND: dict[Standing, str] = {"front": "filled", "open": "pale", "dominated": "hollow"}
WORDS: dict[Standing, str] = {
    "front": "on the front", "open": "perhaps dominated", "dominated": "dominated"
}  # fmt: skip


class Dot(NamedTuple):
    method: str
    label: str
    cost: Interval
    quality: Interval
    standing: Standing


def plot(rows: FigureRows, most: int, cost: Cost) -> sheet.Plot | None:
    scored = rows.cells[rows.cells["value"].notna() | rows.cells["failed"].notna()]
    # Methods (and variants) that have both figures.
    both = scored["value"].notna() & scored[cost.absolute].notna()
    both &= ~scored["method"].isin(rows.oracles)
    some = replace(rows, cells=scored).settings("length", having=both)
    if not some:
        return None
    drawn = spread(some, most)
    panels = [captions.panel(p, partial(paint, rows, p, cost), "length", "scores") for p in drawn]
    competing, oracles = zip(*(_apart(rows, panel) for panel in drawn), strict=True)
    foremost = [_foremost(dots(rows, panel, cost)[0]) for panel in competing]
    legend = captions.legend(rows, competing, foremost)
    legend += [(sheet.mark(None, KIND[standing]), text) for standing, text in WORDS.items()]
    failed = (how for p in competing for how in failures(p, cost.absolute)["failed"])
    legend += captions.failures(failed)
    goes_on = "; an arrow where one goes on" if cost.is_time else " of quality"
    bars = f"Bars: 95 % intervals{goes_on}."
    if any(len(set(map(looks.base_name, p["method"]))) < p["method"].nunique() for p in drawn):
        bars += " Lines join the budgets of a method."
    note = (
        f"{bars} Dominated: another is cheaper and better, and the intervals of both "
        "differences exclude 0."
    )
    if any(map(constant, drawn)):
        legend.append((sheet.dashed(looks.GREY, ":"), "best constant answer"))
    if cost is KV_HELD and any(in_16_bits(p) is not None for p in drawn):
        legend.append((sheet.dashed(looks.GREY, "-."), "all tokens in 16 bits"))
    if any(map(len, oracles)):
        legend.append((sheet.dashed(looks.GREY), "oracle: a ceiling"))
    return sheet.Plot(panels, 2, 2.1, legend, note, len(some) - most)


for _cost in (LATENCY, MEMORY, PROCESS, TPOT, KV_HELD, KV_READ):
    figure(
        f"pareto_{_cost.name}",
        f"quality against {_cost.text}, with the Pareto front",
        f"two methods with quality and {_cost.needs} at one length, in one setting",
    )(partial(plot, cost=_cost))


def _apart(rows: FigureRows, panel: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells of a panel that compete, and those of oracles with a score."""
    oracles = panel["method"].isin(rows.oracles)
    return panel[~oracles], panel[oracles & panel["value"].notna()]


def dots(rows: FigureRows, panel: pd.DataFrame, cost: Cost) -> tuple[list[Dot], bool]:
    """The points of a panel, and whether their cost is a ratio to vanilla."""
    ratio = bool(panel.loc[panel["method"] == VANILLA, cost.absolute].notna().any())
    column = cost.ratio if ratio else cost.absolute
    less_is_better = panel["higher_is_better"].eq(False).any()
    found: list[tuple[str, str, Interval, Interval, Interval]] = []
    for name, label, cells in rows.arms(panel):
        for cell in records(cells[cells["value"].notna() & cells[column].notna()]):
            quality = interval(cell, "value", "ci_lo", "ci_hi")
            columns = ("value_diff", "value_diff_ci_lo", "value_diff_ci_hi")
            gain = Interval(0.0, 0.0, 0.0) if name == VANILLA else interval(cell, *columns)
            found.append((name, label, _price(cell, cost, column), quality, gain))
    # Differences to vanilla on the same samples have narrower intervals than scores.
    paired = all(not math.isnan(gain.value) for *_, gain in found)
    points = []
    for _, _, price, quality, gain in found:
        value, lo, hi = gain if paired else quality
        up = Interval(-value, -hi, -lo) if less_is_better else Interval(value, lo, hi)
        points.append(ParetoPoint(Interval(*map(_log, price)), up))
    stand = standings(points)
    return [Dot(*one[:4], where) for one, where in zip(found, stand, strict=True)], ratio


def _foremost(points: list[Dot]) -> frozenset[str]:
    """Vanilla, then the methods on the front, those that may be on it, and the others, cheapest
    first."""
    order = sorted(
        points, key=lambda dot: (dot.method != VANILLA, [*KIND].index(dot.standing), dot.cost.value)
    )
    return style.foremost(dot.method for dot in order)


def _by_method(points: list[Dot]) -> dict[str, list[Dot]]:
    """The points of each method, several budgets in order."""
    return grouped(sorted(points, key=_budget), lambda dot: looks.base_name(dot.method))


def _budget(dot: Dot) -> float:
    setting = dot.method.removeprefix(looks.base_name(dot.method)).removeprefix("·")
    return float(setting) if setting else 0.0


def _labels(points: list[Dot], own: frozenset[str]) -> list[sheet.Label]:
    """Settings next to points; for budgets that a line joins, only the smallest."""
    labels: list[sheet.Label] = []
    for name, its in _by_method(points).items():
        joined = looks.base_name(its[0].method) != its[0].method
        for dot in (its[:1] if joined else its) if name in own else ():
            words = f"{_budget(dot):g} {dot.label}" if joined else dot.label
            labels += [(words.strip(), dot.cost.value, dot.quality.value)] if words else []
    return labels


def _price(cell: Any, cost: Cost, column: str) -> Interval:
    if cost.is_time and column == cost.ratio:
        return interval(cell, column, f"{column}_ci_lo", f"{column}_ci_hi")
    value = float(getattr(cell, column)) * (cost.scale if column == cost.absolute else 1)
    if cost.is_time:  # without pairs there is no interval
        return Interval(value, 0.0, math.inf)
    return Interval(value, value / (1 + MEMORY_REPEATS / 2), value * (1 + MEMORY_REPEATS / 2))


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else math.inf if value > 0 else -math.inf


def paint(rows: FigureRows, panel: pd.DataFrame, cost: Cost, axes: Axes) -> list[sheet.Label]:
    panel, oracles = _apart(rows, panel)
    points, ratio = dots(rows, panel, cost)
    front = sorted((d.cost.value, d.quality.value) for d in points if d.standing == "front")
    axes.plot(*zip(*front, strict=True), color=style.PALE, linewidth=2.2, zorder=1)
    if ratio:
        sheet.parity(axes, "x")
    ceilings = _ceilings(oracles, cost.is_of_entries and ratio)
    costs = [dot.cost.value for dot in points]
    costs += [share for _, share, _ in ceilings if share]
    if ratio and cost is KV_HELD and (whole := in_16_bits(panel)) is not None:
        axes.axvline(whole, color=looks.GREY, linewidth=0.8, linestyle="-.", zorder=1)
        costs.append(whole)
    low, high = min(costs), max(costs)
    room = (high / low) ** 0.12 * 1.15
    limits = (low / room, high * room * (1.25 if len(failures(panel, cost.absolute)) else 1))
    own = _foremost(points)
    for name, its in _by_method(points).items():
        look = rows.looks[its[0].method] if name in own else style.OTHERS
        places = [(dot.cost.value, dot.quality.value) for dot in its]
        if looks.base_name(its[0].method) != its[0].method:
            axes.plot(*zip(*places, strict=True), color=look.color, linewidth=0.9, zorder=2)
        for dot in its:
            if name in own:
                _bars(axes, dot, look.color, limits, bars=cost.is_time and ratio)
            kind = KIND[dot.standing] if name in own else "filled"
            sheet.points(axes, dot.cost.value, dot.quality.value, look, kind)
    ticks.log_axis(axes, "x", *limits)
    axes.set_xlabel(
        f"{cost.label} / vanilla's" if ratio else f"{cost.label}, {cost.unit} (vanilla has none)"
    )
    axes.set_ylabel(captions.quality(panel))
    if level := constant(panel):
        axes.axhline(level, color=looks.GREY, linewidth=0.8, linestyle=":", zorder=1)
    labels = _labels(points, own)
    labels += _draw_ceilings(axes, ceilings, limits[0])
    ticks.score_axis(axes, captions.percent(panel))
    _failures(rows, panel, cost, axes)
    return labels


Ceiling = tuple[str, float | None, float]
"""An oracle's name, the share of the entries that is its budget, and its score."""


def _ceilings(oracles: pd.DataFrame, by_budget: bool) -> list[Ceiling]:
    """The ceilings of oracles, those with a position on the axis first; seeds are averaged."""
    found: list[Ceiling] = []
    for (name, params), cells in oracles.groupby(["method", "method_params"]):
        budget = json.loads(str(params)).get("budget")
        share = budget if by_budget and isinstance(budget, float | int) and budget <= 1 else None
        found.append((str(name), share, float(cells["value"].mean())))
    return sorted(found, key=lambda one: (one[1] is None, one[1] or 0.0))


def _draw_ceilings(axes: Axes, ceilings: list[Ceiling], edge: float) -> list[sheet.Label]:
    """Draws a curve over the budgets of each oracle, with open marks, or a line across the panel
    without budgets. Returns the names."""
    kind: dict[str, Any] = {"color": looks.GREY, "linewidth": 0.8, "linestyle": "--", "zorder": 2}
    curves: dict[str, list[tuple[float, float]]] = {}
    labels: list[sheet.Label] = []
    for name, share, score in ceilings:
        if share is None:
            axes.axhline(score, **kind)
            labels.append((name, edge, score))
        else:
            curves.setdefault(name.partition("·")[0], []).append((share, score))
    for name, places in curves.items():
        axes.plot(*zip(*places, strict=True), **sheet.marks(looks.GREY, "o", "hollow") | kind)
        labels.append((name, *places[0]))
    return labels


def in_16_bits(panel: pd.DataFrame) -> float | None:
    """Bytes of all tokens' keys and values in 16 bits / vanilla's bytes, from rows with more bits
    than 16: against 16 bits, quantised caches save less."""
    wide = panel[panel["dtype"].isin(("float32", "float64"))]
    held, of_16 = (pd.to_numeric(wide[name]) for name in ("kv_held_ratio", "kv_ratio_16bit"))
    places = (held / of_16).dropna()
    return float(places.median()) if len(places) else None


def _bars(axes: Axes, dot: Dot, color: str, limits: tuple[float, float], bars: bool) -> None:
    across, up = dot.cost, dot.quality
    kind: dict[str, Any] = {"color": color, "linewidth": 0.8, "zorder": 3, "alpha": 0.75}
    if math.isfinite(up.lo) and math.isfinite(up.hi):
        axes.plot([across.value] * 2, [up.lo, up.hi], **kind)
    else:  # open mark: its ends aren't known
        axes.axvline(across.value, **kind | sheet.OPEN)
    if bars and dot.method != VANILLA:
        sheet.bar(axes, (across.lo, across.hi), up.value, limits, **kind)


def _failures(rows: FigureRows, panel: pd.DataFrame, cost: Cost, axes: Axes) -> None:
    """Draws methods without a cost at the right edge, once for all seeds: at their mean quality if
    it was measured, else one above the other from the bottom."""
    ended: dict[tuple[str, str], list[float]] = {}
    for name, _, cells in rows.arms(failures(panel, cost.absolute)):
        for how, value in zip(cells["failed"], cells["value"], strict=True):
            ended.setdefault((name, how), []).extend([value] if pd.notna(value) else [])
    unscored = [one for one, values in ended.items() if not values]
    step = min(0.1, 0.86 / max(1, len(unscored)))
    for (name, how), values in ended.items():
        at, color = axes.transAxes, rows.looks[name].color
        if values:
            at, y = axes.get_yaxis_transform(), sum(values) / len(values)
        else:
            y = 0.07 + step * unscored.index((name, how))
        sheet.failure(axes, 0.965, y, how, color, transform=at, zorder=5)


def constant(panel: pd.DataFrame) -> float | None:
    """The score of the best answer that needs no reading, if any score isn't clearly above it."""
    return None if (low := panel[panel["at_chance"].eq(True)]).empty else float(low["chance"].max())
