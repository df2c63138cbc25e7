"""The cells of heat maps: scores of 0 to 100 as colour and number, marks for missing scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.status import Status
from reports.figures import style
from reports.looks import BLACK, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = "Blues"
WHITE_FROM = 60
"""Scores from which on the number is white."""
LINE_IN = 0.16
"""Height of a line of cells."""
NAME_PT, NUMBER_PT, WORD_PT = 5.8, 5.4, 4.8
HATCH = "//////"
ENDS: dict[str, str] = {
    Status.OOM_HOST: "mem", Status.OOM_DEVICE: "mem", Status.TIMEOUT: "time", Status.ERROR: "err",
    Status.UNSUPPORTED: "n/s", Status.SKIPPED: "skip", Status.RETIRED: "ret",
}  # fmt: skip
LEGEND = (
    "Colour and number: score, 0 (white) to 100 (dark). Hatched: not run. Grey: no score (mem out "
    "of memory, time out of time, err failed, n/s not supported, skip left out of the budget)."
)


def fill(axes: Axes, values: Any, texts: Sequence[Sequence[str]]) -> None:
    """Draws scores [lines, columns], NaN where there is none, each with its text."""
    axes.pcolormesh(
        np.ma.masked_invalid(values), cmap=COLORS, vmin=0, vmax=100, edgecolors="white",
        linewidth=0.8,
    )  # fmt: skip
    for (line, at), value in np.ndenumerate(values):
        if not np.isnan(value):
            write(axes, at, line, texts[line][at], "white" if value >= WHITE_FROM else BLACK)


def without(axes: Axes, at: int, line: int, status: str | None) -> None:
    """A cell without a score: hatched where it wasn't run, grey with a word where it ended."""
    from matplotlib.patches import Rectangle

    ended = status is not None and status != Status.OK
    face, hatch = (style.PALE, "") if ended else ("white", HATCH)
    axes.add_patch(
        Rectangle((at, line), 1, 1, facecolor=face, hatch=hatch, edgecolor="#BBBBBB", linewidth=0.4)
    )
    if ended:
        write(axes, at, line, ENDS.get(str(status), "err"), GREY, WORD_PT)


def write(axes: Axes, at: int, line: int, text: str, color: str, size: float = NUMBER_PT) -> None:
    axes.text(at + 0.5, line + 0.5, text, ha="center", va="center", fontsize=size, color=color)


def frame(axes: Axes, lines: Sequence[str], columns: Sequence[str]) -> None:
    """The names of lines and columns, and no other ink."""
    axes.set_xticks(np.arange(len(columns)) + 0.5, list(columns), rotation=45, ha="right",
                    rotation_mode="anchor", fontsize=NAME_PT)  # fmt: skip
    axes.set_yticks(np.arange(len(lines)) + 0.5, list(lines), fontsize=NAME_PT)
    axes.set(xlim=(0, len(columns)), ylim=(len(lines), 0))
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
