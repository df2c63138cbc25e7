"""One plot as a sheet of panels: their grid at both widths, the legend below, and files."""

from __future__ import annotations

import io
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.files import check_own, write_own
from reports import looks
from reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = ("png", "svg", "pdf")
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None},
                                       "pdf": {"CreationDate": None}}  # fmt: skip
"""The same rows give the same file, whenever it is drawn."""

LegendEntry = tuple["Line2D | None", str]
Label = tuple[str, float, float]
"""Words next to a point, and the point."""
Paint = Callable[["Axes"], "Sequence[Label] | None"]
Table = Sequence[Sequence[LegendEntry]]


class Own(str):
    """A fact that each panel prints, even if all panels share it."""


@dataclass
class Panel:
    """One pair of axes: the parts of its title, the facts of a second, smaller line, the function
    that draws it, and a table below it, line by line, the first of which is its head. Facts that
    all panels of a plot share are printed once, below them, except `Own` facts. Drawing returns the
    labels of points, if any, which are placed when the axes have their size."""

    title: Sequence[str]
    facts: Sequence[str]
    paint: Paint
    table: Table = ()


@dataclass
class Plot:
    """Panels, their shared legend, and small print. At full width `across` panels are side by side,
    at column width half of them. `left_out` counts panels that a larger limit would have
    drawn."""

    panels: list[Panel]
    across: int = 2
    height_in: float = 2.1
    legend: list[LegendEntry] = field(default_factory=list)
    note: str = ""
    left_out: int = 0


def save(plot: Plot, name: str, out: Path, formats: Iterable[str], width: str) -> list[Path]:
    """Write the plot as `out/name.FORMAT` and return the files. Raises RequestError for a file that
    can't be written or replaced."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {form: out / f"{name}.{form}" for form in formats}
    check_own(*files.values())
    # A name in a script that the font lacks is drawn as boxes, without a warning.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(rc=cast(Any, style.RC)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        labels = _compose(plot, figure, width)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # placed once for all formats
        for axes, texts in labels:
            _place(axes, texts)
        for form, path in files.items():
            content = io.BytesIO()
            figure.savefig(content, format=form, metadata=METADATA[form])
            write_own(path, content.getvalue())
    return list(files.values())


def _compose(plot: Plot, figure: Figure, width: str) -> list[tuple[Axes, Sequence[Label]]]:
    across = plot.across if width == "full" else max(1, plot.across // 2)
    full = style.WIDTHS[width]
    if len(plot.panels) < across:  # few panels aren't stretched to the full width
        full *= len(plot.panels) / across
        across = len(plot.panels)
    full = max(full, style.COLUMN_IN)
    titles = [list(panel.title) for panel in plot.panels]
    common: list[str] = []
    if len(titles) > 1:
        common, titles = _shared_words(titles, least=1)
    shared, own = _shared_words([panel.facts for panel in plot.panels])
    small = " · ".join([*common, *shared])
    whole_note = small + (". " if small else "") + plot.note
    note = "\n".join(textwrap.wrap(whole_note, int(full / 0.0425)))
    columns = _legend_columns(plot.legend, full)
    legend_in = 0.12 * -(-len(plot.legend) // columns) + 0.12 if plot.legend else 0.0
    note_in = 0.105 * len(note.splitlines()) + 0.05 if note else 0.0
    lines = [plot.panels[i : i + across] for i in range(0, len(plot.panels), across)]
    tables_in = [max(_table_in(panel) for panel in line) for line in lines]
    height = plot.height_in * len(lines) + sum(tables_in) + legend_in + note_in
    figure.set_size_inches(full, height)
    bottom = (legend_in + note_in) / height
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.04, h_pad=0.03, wspace=0.02, hspace=0.02, rect=(0, bottom, 1, 1 - bottom))
    heights = [h for table_in in tables_in for h in (plot.height_in, table_in) if h]
    grid = figure.add_gridspec(len(heights), across, height_ratios=heights)
    at, labels = 0, []
    heads = iter(zip(titles, own, strict=True))
    for line, table_in in zip(lines, tables_in, strict=True):
        for place, panel in enumerate(line):
            axes = figure.add_subplot(grid[at, place])
            _head(axes, *next(heads), full / across)
            labels.append((axes, panel.paint(axes) or ()))
            if table_in:
                _table(panel, figure.add_subplot(grid[at + 1, place]), table_in)
        at += 2 if table_in else 1
    if plot.legend:
        from matplotlib.lines import Line2D

        nothing = Line2D([], [], linestyle="none")
        handles = [handle or nothing for handle, _ in plot.legend]
        figure.legend(
            handles, [text for _, text in plot.legend], loc="lower center", ncols=columns,
            bbox_to_anchor=(0.5, note_in / height), borderpad=0.1,
        ).set_in_layout(False)  # fmt: skip
    if note:
        figure.text(
            0.5, 0.04 / height, note, fontsize=5.6, color=looks.GREY, ha="center", va="bottom",
            linespacing=1.25,
        ).set_in_layout(False)  # fmt: skip
    return labels


def _shared_words(
    facts: Sequence[Sequence[str]], least: int = 0
) -> tuple[list[str], list[list[str]]]:
    """The words that all panels share, and the words of each panel, at least `least` of them."""
    common = (fact for fact in facts[0] if not isinstance(fact, Own))
    shared = [fact for fact in common if all(fact in one for one in facts)]
    while shared and any(len(one) - len(shared) < least for one in facts):
        shared = shared[1:]
    return shared, [[fact for fact in one if fact not in shared] for one in facts]


def _legend_columns(legend: Sequence[LegendEntry], width_in: float) -> int:
    longest = max((len(text) for _, text in legend), default=1)
    most = max(1, min(len(legend), int(width_in / (0.40 + 0.05 * longest))))
    lines = -(-len(legend) // most)
    return -(-len(legend) // max(1, lines))  # as even as possible for this number of lines


def _head(axes: Axes, title: Sequence[str], facts: Sequence[str], width_in: float) -> None:
    """Draws title and facts above the axes, on as many lines as needed."""
    small = _lines(facts, int((width_in - 0.4) / 0.042))
    line = "\n".join(_lines(title, int((width_in - 0.4) / 0.066)))
    axes.set_title(line, pad=5.5 + 7.5 * len(small)).set_in_layout(False)
    axes.title.set_in_layout(True)
    if small:
        axes.annotate(
            "\n".join(small), (0, 1), (0, 4), "axes fraction", "offset points", fontsize=5.6,
            color=looks.GREY, va="bottom", linespacing=1.1,
        ).set_in_layout(False)  # fmt: skip


def _lines(words: Sequence[str], most: int) -> list[str]:
    """Words separated by dots, on lines of at most `most` characters."""
    whole = (style.tidy(word, 8 * most).replace(" ", "\xa0") for word in words)
    lines = textwrap.wrap(" · ".join(whole)[: 8 * most], max(8, most), break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


TABLE_LINE_IN = 0.118
TABLE_STOPS = {4: (-0.19, 0.205, 0.475, 0.705), 3: (-0.19, 0.24, 0.55)}
"""Where so many columns begin, as a share of the width of the axes above."""


def _table_in(panel: Panel) -> float:
    return TABLE_LINE_IN * len(panel.table) + 0.1 if panel.table else 0.0


def _table(panel: Panel, axes: Axes, height_in: float) -> None:
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(height_in, 0))
    for i, line in enumerate(panel.table):
        y = TABLE_LINE_IN * (i + 0.5)
        color = looks.GREY if i == 0 else looks.BLACK
        for place, (stop, (handle, text)) in enumerate(
            zip(TABLE_STOPS[len(line)], line, strict=True)
        ):
            at = stop
            if handle is not None:
                handle.set_data([at, at + 0.03, at + 0.06], [y] * 3)
                handle.set(markevery=[1], clip_on=False, markersize=3.8, in_layout=False)
                axes.add_line(handle)
            at += 0.075 if place == 0 else 0
            axes.text(
                at, y, text, fontsize=5.4, color=color, va="center", clip_on=False, in_layout=False
            )  # fmt: skip


def mark(look: looks.Look | None, kind: str = "filled", line: Any = "") -> Line2D:
    """A legend's mark: filled, pale or hollow in the method's look, or one of the marks in
    style."""
    color = look.color if look else looks.GREY
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle=line, **marks(color, look.marker if look else "o", kind))


def dashed(color: str, kind: Any = "--") -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle=kind, linewidth=0.8, color=color)


def _place(axes: Axes, labels: Sequence[Label]) -> None:
    """Put each label next to its point, where it covers neither a point nor another label, or
    further away if there is no room. A label without any free place is left out."""
    per_point = axes.figure.dpi / 72
    to_points = axes.transData.transform
    taken = [
        (x - 3, y - 3, x + 3, y + 3)
        for line in axes.lines
        if line.get_marker() not in (None, "None", "") and line.get_transform() == axes.transData
        for x, y in to_points(line.get_xydata()) / per_point
    ]
    edge = [end / per_point for end in axes.bbox.extents]
    for text, x, y in labels:
        text = style.tidy(text, 24)
        at_x, at_y = to_points((x, y)) / per_point
        wide, high = 3.6 * len(text), 5.5
        for dx, dy in PLACES:
            left = at_x + dx - (0 if dx > 0 else wide if dx else wide / 2)
            low = at_y + dy - (0 if dy > 0 else high if dy else high / 2)
            box = (left, low, left + wide, low + high)
            inside = left > edge[0] and box[2] < edge[2] + 8 and low > edge[1] and box[3] < edge[3]
            if inside and not any(
                left < o[2] and o[0] < box[2] and low < o[3] and o[1] < box[3] for o in taken
            ):
                axes.annotate(
                    text, (x, y), (dx, dy), textcoords="offset points", fontsize=5.4,
                    color=looks.GREY, zorder=5,
                    ha="left" if dx > 0 else "right" if dx else "center",
                    va="bottom" if dy > 0 else "top" if dy else "center",
                    arrowprops=LEADER if max(abs(dx), abs(dy)) > FAR else None,
                )  # fmt: skip
                taken.append(box)
                break


PLACES = (
    (3, 3), (3, -3), (-3, 3), (-3, -3), (4, 0), (-4, 0), (0, 5), (0, -5),
    (8, 8), (8, -8), (-8, 8), (-8, -8), (16, 14), (16, -14), (-16, 14), (-16, -14),
    (0, 20), (0, -20), (26, 24), (26, -24), (-26, 24), (-26, -24), (0, 32), (0, -32),
)  # fmt: skip
"""Offsets in points, the nearest first, diagonal ones before those on bars; from those further off
a line leads back to the point."""
FAR = 10
LEADER = {"arrowstyle": "-", "color": looks.GREY, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}


def marks(color: str, marker: str, kind: str = "filled") -> dict[str, Any]:
    """matplotlib's arguments for a mark; `kind` is filled, pale, hollow, or another mark."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = (1 - (1 - part) * 0.35 for part in to_rgb(color))
    face = {"filled": color, "pale": to_hex((red, green, blue))}.get(kind, "white")
    if kind not in ("filled", "pale", "hollow"):
        marker = kind
    found = {
        "color": color, "marker": marker, "markerfacecolor": face, "markeredgecolor": color,
        "markeredgewidth": 0.9,
    }  # fmt: skip
    return {**found, "markersize": 6.5} if kind in (style.TIMEOUT, style.PUBLISHED) else found


def points(axes: Axes, x: Any, y: Any, look: looks.Look, kind: str = "filled", **more: Any) -> None:
    """Draws marks; without a line between them unless `linestyle` is given."""
    axes.plot(
        x, y, **{"linestyle": "", "zorder": 4, **marks(look.color, look.marker, kind), **more}
    )


def failure(axes: Axes, x: float, y: float, how: str, color: str, **more: Any) -> None:
    """Draws the mark of a cell that ended without a figure; `how` is its status."""
    kind = style.TIMEOUT if how == "timeout" else style.OOM
    axes.plot(x, y, linestyle="", clip_on=False, **marks(color, "o", kind), **more)


def bar(
    axes: Axes, ends: tuple[float, float], y: float, limits: tuple[float, float], **kind: Any
) -> None:
    """Draws a horizontal interval at height y, within the limits of the axis. An end beyond the
    limits or without a bound has an arrow; if both ends have, the bar is thin and dotted."""
    places = [min(max(end, limits[0]), limits[1]) for end in ends]
    beyond = [not limits[0] <= end <= limits[1] for end in ends]
    look = {"linewidth": 0.8, **kind}
    axes.plot(places, [y] * 2, **(look | OPEN if all(beyond) else look))
    for edge, outside, mark in zip(limits, beyond, "<>", strict=True):
        if outside:
            axes.plot(edge, y, marker=mark, markersize=3, clip_on=False, **look)


OPEN: dict[str, Any] = {"linestyle": (0, (1, 3)), "linewidth": 0.6}
"""The line of an interval without a bound."""


def parity(axes: Axes, side: str) -> None:
    """A dashed line where a ratio on the axis `side` (x or y) is 1."""
    draw = axes.axvline if side == "x" else axes.axhline
    draw(1, color=looks.GREY, linewidth=0.6, dashes=(3, 2), zorder=1)
