"""How every plot looks: sizes, type, and one colour and mark for each method in all of them.

Colours are Okabe and Ito's (2008), told apart with any colour vision; marks differ as well, so
that a print in grey can be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

COLUMN_IN, FULL_IN = 3.3, 6.9
"""Width of one column, and of both, in a paper."""
WIDTHS = {"column": COLUMN_IN, "full": FULL_IN}

BLACK, GREY, PALE = "#000000", "#6E6E6E", "#D9D9D9"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"

OOM, TIMEOUT, PUBLISHED = "x", "1", "+"
"""Marks of a cell that ran out of memory, of one that took too long, of a published figure."""

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
    "svg.hashsalt": "longctx-bench",  # the same rows give the same file
    # Names come from users: a "$" in one is a dollar, never mathematics.
    "text.parse_math": False,
    "text.usetex": False,
}


class Look(NamedTuple):
    """A method's colour, mark and place in every legend."""

    color: str
    marker: str
    rank: int


KNOWN = {
    "vanilla": (BLACK, "o"),
    "vanilla_eager": (GREY, "o"),
    "bigbird": (ORANGE, "^"),
    "bigbird_etc": (ORANGE, "v"),
    "vcc": (BLUE, "s"),
    "iceformer": (RED, "D"),
    "fourier": (GREEN, "h"),
}
SPARE = [
    (color, marker)
    for marker in ("p", "P", "X", "8", "<", "d", "*", "H")
    for color in (PINK, SKY, GREEN, BLUE, RED, ORANGE)
]
VARIANTS = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1, 1, 1)))
"""Lines of one method with several parameters, in turn."""


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Every method's look, in the order of legends: the project's own first, others by name.

    An unknown method's look follows from its name; where two names want the same, the one that
    sorts later takes the next that is free. So it is the same in all plots of one folder of rows,
    and seldom changes when a method joins.
    """
    names = set(methods)
    found = {n: Look(*KNOWN[n], rank) for rank, n in enumerate(KNOWN) if n in names}
    taken: set[int] = set()
    for name in sorted(names - set(KNOWN)):
        slot = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(SPARE)
        while slot in taken and len(taken) < len(SPARE):
            slot = (slot + 1) % len(SPARE)
        taken.add(slot)
        found[name] = Look(*SPARE[slot], len(KNOWN) + len(found))
    return found


def tidy(name: str, most: int = 28) -> str:
    """A name as one short line. A legend passes over labels that begin with an underscore."""
    line = "".join(c for c in " ".join(name.split()) if c.isprintable()) or "?"
    line = line if len(line) <= most else line[: most - 1] + "…"
    return f" {line}" if line.startswith("_") else line


def number(value: float, digits: int = 2) -> str:
    """Plain digits for axes and legends: 0.05, 1.5, 20, 16,384."""
    if value == 0 or abs(value) >= 1e7 or abs(value) < 1e-4:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") if value else "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) < 1 else f"{value:.{digits + 1}g}"
