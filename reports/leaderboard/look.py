"""Order, colour and marker of a method: the same wherever methods are drawn."""

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
    "vanilla_eager": Look("#7f7f7f", "ring"),
    "bigbird": Look("#E69F00", "square"),
    "bigbird_etc": Look("#F0C75E", "diamond"),
    "vcc": Look("#0072B2", "up"),
    "iceformer": Look("#009E73", "down"),
    "fourier": Look("#D55E00", "hexagon"),
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
