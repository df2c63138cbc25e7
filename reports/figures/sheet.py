"""One plot as a sheet of panels: their grid at either width, legends beneath, files."""

from __future__ import annotations

import logging
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = ("png", "svg", "pdf")
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None},
                                       "pdf": {"CreationDate": None}}  # fmt: skip
"""The same rows give the same file, whenever it is drawn."""

Entry = tuple["Line2D | None", str]


@dataclass
class Panel:
    """One pair of axes: `title`, the facts that a second, smaller line tells, what paints it, and
    a table beneath it, line by line, whose first line is its head."""

    title: str
    facts: Sequence[str]
    paint: Callable[[Axes], None]
    table: Sequence[Sequence[Entry]] = ()


@dataclass
class Plot:
    """Panels, `across` side by side at full width (half of them at column width), the legend they
    share, and small print. `left_out` are panels that a wider choice would have drawn."""

    panels: list[Panel]
    across: int = 2
    height_in: float = 2.1
    legend: list[Entry] = field(default_factory=list)
    note: str = ""
    left_out: int = 0


def save(plot: Plot, name: str, out: Path, formats: Iterable[str], width: str) -> list[Path]:
    """Write the plot as `out/name.FORMAT` and give the files."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A name in a script that the font lacks is drawn as boxes: no reason to talk about it.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(style.RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        _compose(plot, figure, width)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # placed once, not for each format again
        files = []
        for form in formats:
            path = out / f"{name}.{form}"
            figure.savefig(path, format=form, metadata=METADATA[form])
            files.append(path)
    return files


def _compose(plot: Plot, figure: Figure, width: str) -> None:
    across = plot.across if width == "full" else max(1, plot.across // 2)
    full = style.WIDTHS[width]
    if len(plot.panels) < across:  # few panels aren't stretched over the width of more
        full *= len(plot.panels) / across
        across = len(plot.panels)
    full = max(full, style.COLUMN_IN)
    shared, own = _told_once([panel.facts for panel in plot.panels])
    note = _wrapped(" · ".join(shared) + (". " if shared else "") + plot.note, full)
    columns = _legend_columns(plot.legend, full)
    legend_in = 0.135 * -(-len(plot.legend) // columns) + 0.06 if plot.legend else 0.0
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
    at = 0
    for line, table_in, told in zip(lines, tables_in, _grouped(own, across), strict=True):
        for place, (panel, facts) in enumerate(zip(line, told, strict=True)):
            _draw(panel, facts, figure.add_subplot(grid[at, place]), full / across)
            if table_in:
                _table(panel, figure.add_subplot(grid[at + 1, place]), table_in)
        at += 2 if table_in else 1
    if plot.legend:
        handles = [handle or _nothing() for handle, _ in plot.legend]
        labels = [text for _, text in plot.legend]
        figure.legend(
            handles, labels, loc="lower center", bbox_to_anchor=(0.5, note_in / height),
            ncols=columns, borderpad=0.1,
        ).set_in_layout(False)  # fmt: skip
    if note:
        figure.text(
            0.5, 0.04 / height, note, fontsize=5.6, color=style.GREY, ha="center", va="bottom",
            linespacing=1.25,
        ).set_in_layout(False)  # fmt: skip


def _told_once(facts: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """What all panels have in common, and what each has of its own; of one panel all is its own."""
    if len(facts) < 2:
        return [], [list(one) for one in facts]
    shared = [fact for fact in facts[0] if all(fact in one for one in facts)]
    return shared, [[fact for fact in one if fact not in shared] for one in facts]


def _grouped(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _legend_columns(legend: Sequence[Entry], width_in: float) -> int:
    longest = max((len(text) for _, text in legend), default=1)
    most = max(1, min(len(legend), int(width_in / (0.40 + 0.05 * longest))))
    lines = -(-len(legend) // most)
    return -(-len(legend) // max(1, lines))  # as even as so many lines can be


def _wrapped(text: str, width_in: float) -> str:
    return "\n".join(textwrap.wrap(text, int(width_in / 0.0425)))


def _draw(panel: Panel, facts: Sequence[str], axes: Axes, width_in: float) -> None:
    axes.set_title(style.tidy(panel.title, int(width_in / 0.062)), pad=12 if facts else 4)
    if facts:
        axes.annotate(
            style.tidy(" · ".join(facts), int((width_in - 0.4) / 0.042)), (0, 1), (0, 4),
            "axes fraction", "offset points", fontsize=5.6, color=style.GREY,
        )  # fmt: skip
    panel.paint(axes)


TABLE_LINE_IN = 0.118
TABLE_STOPS = (-0.16, 0.22, 0.51, 0.735)
"""Where columns begin, as a share of the width of the axes above."""


def _table_in(panel: Panel) -> float:
    return TABLE_LINE_IN * len(panel.table) + 0.1 if panel.table else 0.0


def _table(panel: Panel, axes: Axes, height_in: float) -> None:
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(height_in, 0))
    for i, line in enumerate(panel.table):
        y = TABLE_LINE_IN * (i + 0.5)
        color = style.GREY if i == 0 else style.BLACK
        for stop, (handle, text) in zip(TABLE_STOPS, line, strict=True):
            at = stop
            if handle is not None:
                handle.set_data([at, at + 0.045, at + 0.09], [y] * 3)
                handle.set(markevery=[1], clip_on=False, markersize=3.8)
                axes.add_line(handle)
            at += 0.11 if stop == TABLE_STOPS[0] else 0
            axes.text(at, y, text, fontsize=6.0, color=color, va="center", clip_on=False)


def _nothing() -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none")


def mark(look: style.Look | None, kind: str = "filled", line: Any = "") -> Line2D:
    """A legend's mark: filled, pale or hollow in the method's look, or one of style's marks."""
    from matplotlib.lines import Line2D

    color = look.color if look else style.GREY
    return Line2D([], [], linestyle=line, **marks(color, look.marker if look else "o", kind))


def dashed(color: str) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="--", linewidth=0.8, color=color)


def label(axes: Axes, text: str, x: float, y: float) -> None:
    """A variant's parameters beside its mark."""
    if text:
        axes.annotate(
            style.tidy(text, 22), (x, y), (3.5, 2.5), textcoords="offset points", fontsize=5.3,
            color=style.GREY, zorder=5,
        )  # fmt: skip


def marks(color: str, marker: str, kind: str = "filled") -> dict[str, Any]:
    """matplotlib's words for a mark; `kind` is filled, pale, hollow, or a mark of its own."""
    face = {"filled": color, "pale": _pale(color)}.get(kind, "white")
    if kind not in ("filled", "pale", "hollow"):
        marker = kind
    return {
        "color": color, "marker": marker, "markerfacecolor": face, "markeredgecolor": color,
        "markeredgewidth": 0.9,
    }  # fmt: skip


def _pale(color: str) -> str:
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - (255 - part) * 0.35):02x}" for part in parts)


def plain_log(axis: Any, low: float, high: float, unit: str = "") -> None:
    """Ticks of a log axis as plain numbers, dense enough for its span."""
    import math

    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    span = math.log10(high / low) if low > 0 else 1.0
    steps = (1, 1.5, 2, 3, 5, 7) if span < 0.7 else (1, 2, 5) if span < 2.2 else (1,)
    every = 1 if span < 6 else 2
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [s * 10.0**d for d in decades if d % every == 0 for s in steps]
    if span < 0.25:
        from matplotlib.ticker import MaxNLocator

        ticks = [float(t) for t in MaxNLocator(4).tick_values(low, high) if t > 0]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda v, _: style.number(v)))
    axis.set_minor_formatter(NullFormatter())
    axis.get_minor_locator()
    axis.set_minor_locator(FixedLocator([s * 10.0**d for d in decades for s in range(1, 10)]))


def length_axis(axes: Axes, lengths: Iterable[float]) -> None:
    """A log axis of tokens, with the measured lengths as its ticks (some, where there are many)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    apart: list[float] = []
    width = max(1.0, ticks[-1] / ticks[0]) ** (1 / 7)
    for tick in ticks[::-1]:
        if not apart or tick * max(width, 1.02) <= apart[-1] * 1.0001:
            apart.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(apart))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: thousands(v)))
    axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
    axes.set_xlabel("length, tokens")


def thousands(length: float) -> str:
    """512, 4K (of 1,024), 100k (of 1,000)."""
    whole = round(length)
    if whole >= 1024 and whole % 1024 == 0:
        return f"{whole // 1024:,}K"
    if whole >= 10_000 and whole % 1000 == 0:
        return f"{whole // 1000:,}k"
    return f"{whole:,}"
