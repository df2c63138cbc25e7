"""One colour and one mark for each method, in every figure and on the leaderboard.

Colours are Okabe and Ito's (2008), distinguishable with any colour vision; marks differ too, so
that prints in grey are readable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from bench.request import plugins

VANILLA = "vanilla"
BLACK, GREY = "#000000", "#6E6E6E"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"


class Look(NamedTuple):
    """A method's colour (#rrggbb), its mark by matplotlib's name, its position in legends, and the
    number of its line style among those of its colour."""

    color: str
    marker: str
    rank: int = 0
    line: int = 0


KNOWN = {
    VANILLA: (BLACK, "o"),
    "vanilla_eager": (GREY, "o"),
    "bigbird": (ORANGE, "^"),
    "bigbird_etc": (ORANGE, "v"),
    "vcc": (BLUE, "s"),
    "iceformer": (RED, "D"),
    "fourier": (GREEN, "h"),
}
VARIANTS = ("d", "P", "X", "*")
"""Marks of IceFormer's searches after the first, in its colour; no other method has them."""
SPARE = [
    (color, marker)
    for marker in ("p", "P", "X", "s", "<", "d", "*", "v", ">", "D", "^", "8")
    for color in (PINK, SKY, GREEN, BLUE, RED, ORANGE)
    if (color, marker) not in KNOWN.values() and not (color == RED and marker in VARIANTS)
]


def base_name(name: str) -> str:
    """The method of a name: variants by a number, such as a cache's budget, have one look; any
    other variant (name·variant) counts as a separate method."""
    method, _, setting = name.rpartition("·")
    return method if setting.replace(".", "", 1).isdigit() else name


def without_setting(name: str) -> str:
    """The name without its last part, which is the budget, the bits or the format of a cache:
    snapkv·0.25, kvpress·KnormPress·0.5 and q4_0·q4_0 become snapkv, kvpress·KnormPress and q4_0."""
    return name.rpartition("·")[0] or name


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Every method's look, in the order of legends: the project's own first, others by name.

    A method of this installation has the same look in every figure, table and page, with any rows.
    The variants of a known method have its colour and, after the first, other marks. The look of
    another method is determined by a hash of its name; if it is taken, the next free one is used.
    """
    names = set(methods)
    chosen: dict[str, Look] = {}
    for rank, (known, (color, marker)) in enumerate(KNOWN.items()):
        own = sorted(name for name in names if name.partition("·")[0] == known)
        marks = [marker, *VARIANTS]
        chosen |= {name: Look(color, marks[i % len(marks)], rank) for i, name in enumerate(own)}
    others = sorted(names - set(chosen))
    installed = _installed()
    bases = {base_name(name) for name in others}
    here = {installed[name] for name in bases & set(installed)}
    spare = installed | _spare(sorted(bases - set(installed)), here)
    for name in others:
        chosen[name] = Look(*spare[base_name(name)], len(KNOWN) + len(chosen))
    lines: dict[str, dict[str, int]] = {}
    for name, look in chosen.items():
        of_color = lines.setdefault(look.color, {})
        line = of_color.setdefault(base_name(name), len(of_color))
        chosen[name] = look._replace(line=line)
    return chosen


@cache
def _installed() -> dict[str, tuple[str, str]]:
    """Colour and mark of each method of this installation that is not in KNOWN."""
    return _spare(sorted(set(plugins.available("method")) - set(KNOWN)), set())


def _spare(names: Iterable[str], taken: set[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """A look for each name that isn't among those taken, as long as any is free."""
    found: dict[str, tuple[str, str]] = {}
    taken = set(taken)
    for name in names:
        slot = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(SPARE)
        while SPARE[slot] in taken and len(taken) < len(SPARE):
            slot = (slot + 1) % len(SPARE)
        taken.add(SPARE[slot])
        found[name] = SPARE[slot]
    return found
