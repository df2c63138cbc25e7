"""Sizes, type and line widths of all figures; colours and marks of methods are reports.looks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from reports.looks import Look, base_name

COLUMN_IN, FULL_IN = 3.3, 6.9
"""Width of one column, and of both, in a paper."""
WIDTHS = {"column": COLUMN_IN, "full": FULL_IN}

PALE = "#D9D9D9"
OTHERS = Look("#A6A6A6", ".")
"""The look of methods after the first MOST_METHODS of a panel."""
MOST_METHODS = 8

OOM, TIMEOUT, PUBLISHED = "x", "1", "+"
"""Marks of a cell that ran out of memory, of one that timed out, of a published figure."""

RC: dict[str, Any] = {
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.title_fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.3,
    "legend.borderaxespad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#EBEBEB",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "savefig.dpi": 300,
    "figure.dpi": 100,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text: it can be searched and copied
    "svg.hashsalt": "longctx-bench",  # so that the same rows give the same file
    # Names come from users: a "$" in a name isn't mathematics.
    "text.parse_math": False,
    "text.usetex": False,
}


LINE_STYLES = (
    "-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1, 1, 1)), (0, (5, 1, 1, 1, 1, 1)),
    (0, (9, 1.5)), (0, (2, 1)), (0, (8, 1, 2, 1)), (0, (1, 3)), (0, (9, 1, 1, 1, 1, 1, 1, 1)),
    (0, (4, 4)), (0, (6, 2, 2, 2)),
)  # fmt: skip
"""Lines of one colour in turn: of methods that share it, and of one method's sets of parameters."""


def line(number: int) -> Any:
    """The line style with this number, modulo LINE_STYLES."""
    return LINE_STYLES[number % len(LINE_STYLES)]


def foremost(names: Iterable[str]) -> frozenset[str]:
    """The methods that have their own look in a panel: the first MOST_METHODS, regardless of
    settings."""
    return frozenset(islice(dict.fromkeys(map(base_name, names)), MOST_METHODS))


def tidy(name: str, most: int = 28) -> str:
    """A name as one short line. matplotlib leaves labels that begin with an underscore out of a
    legend."""
    line = "".join(c for c in " ".join(name.split()) if c.isprintable()) or "?"
    line = line if len(line) <= most else line[: most - 1] + "…"
    return f" {line}" if line.startswith("_") else line


def number(value: float) -> str:
    """Plain digits for axes and legends: 0.05, 1.5, 20, 16,384."""
    if value == 0 or abs(value) >= 1e7 or abs(value) < 1e-4:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") if value else "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"
