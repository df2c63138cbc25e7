"""The kinds of figure: each module of reports/figures/kinds registers its figures."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from reports.figures import kinds
from reports.figures.cells import FigureRows
from reports.figures.sheet import Plot

Draw = Callable[[FigureRows, int], Plot | None]
"""Rows and the number of panels wanted → the plot; None where the rows have nothing to draw."""


class Figure(NamedTuple):
    """`shows` and `needs` are for help and messages: the contents of the figure, and the rows it
    needs."""

    draw: Draw
    shows: str
    needs: str


_registered: dict[str, Figure] = {}


def figure(name: str, shows: str, needs: str) -> Callable[[Draw], Draw]:
    """Registers a function as the figure of this name."""

    def register(draw: Draw) -> Draw:
        _registered[name] = Figure(draw, shows, needs)
        return draw

    return register


@cache
def figures() -> dict[str, Figure]:
    """Name → figure, from all modules in reports/figures/kinds; figures of papers come last."""
    for module in pkgutil.iter_modules(kinds.__path__):
        importlib.import_module(f"{kinds.__name__}.{module.name}")
    return dict(sorted(_registered.items(), key=lambda item: (item[0][-1].isdigit(), item[0])))
