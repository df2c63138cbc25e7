"""Tables of many rows: drawn for a person at a terminal, tab-separated for a program."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMATS = ("auto", "table", "tsv")


def tabular(form: str) -> bool:
    """Whether to write tab-separated values: asked for, or standard output is no terminal."""
    return form == "tsv" or (form == "auto" and not sys.stdout.isatty())


def tsv(names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    """A line of names and a line for each record; nothing measured is an empty field."""
    print("\t".join(names))
    for record in records:
        print("\t".join(_field(record.get(name)) for name in names))


def _field(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())


def draw(
    title: str, names: Sequence[str], lines: Iterable[Sequence[str]], left: Iterable[str] = ()
) -> None:
    """A table of ready words (rich markup allowed). Columns in `left` are words, others numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    words = set(left)
    for name in names:
        justify: Any = "left" if name in words else "right"
        table.add_column(name, justify=justify, no_wrap=name not in words)
    for line in lines:
        table.add_row(*line)
    width = None if sys.stdout.isatty() else max(100, console_width(table))
    Console(highlight=False, width=width).print(table)


def console_width(table: Any) -> int:
    """The width that a table wants where there is no terminal to fit into."""
    from rich.console import Console

    wide = Console(width=1000)
    return int(wide.measure(table).maximum)
