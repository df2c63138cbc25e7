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
    """A table of formatted cells, in rich markup. Columns in `left` hold text, others numbers.
    Nothing is truncated: lines wider than the terminal wrap."""
    from rich.console import Console
    from rich.table import Table

    text_columns = set(left)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in text_columns else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console = Console(highlight=False, width=1000)
    if title:
        console.print(title, style="bold")
    console.print(table)
