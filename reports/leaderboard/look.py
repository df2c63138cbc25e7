"""Order, colour and marker of a method: the same as in reports.figures.style."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Look(NamedTuple):
    """A colour as #rrggbb (`currentColor` where it must follow the scheme), and a shape."""

    colour: str
    marker: str


# Okabe and Ito's palette, which colour-blind readers can tell apart.
LOOKS = {
    "vanilla": Look("currentColor", "circle"),
    "vanilla_eager": Look("#6E6E6E", "ring"),
    "bigbird": Look("#E69F00", "up"),
    "bigbird_etc": Look("#E69F00", "down"),
    "vcc": Look("#0072B2", "square"),
    "iceformer": Look("#D55E00", "diamond"),
    "fourier": Look("#009E73", "hexagon"),
}
OTHERS = ("#CC79A7", "#56B4E9")
OTHER_MARKERS = ("star", "plus", "cross")


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each of `methods`, in the order in which they are listed: known ones first."""
    names = set(methods)
    found = {name: look for name, look in LOOKS.items() if name in names}
    for number, name in enumerate(sorted(names - set(LOOKS))):
        marker = OTHER_MARKERS[number % len(OTHER_MARKERS)]
        found[name] = Look(OTHERS[number % len(OTHERS)], marker)
    return found
