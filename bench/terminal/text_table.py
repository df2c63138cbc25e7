"""Tables of many rows: drawn for a person at a terminal; tab-separated or JSON for a program."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMATS = ("auto", "table", "tsv", "json")
PIPE_WIDTH = 100
"""Columns of a table that is drawn where there is no terminal."""


def tabular(form: str) -> bool:
    """Whether to write for a program: asked for, or standard output is no terminal."""
    return form in ("tsv", "json") or (form == "auto" and not sys.stdout.isatty())


def write(form: str, names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Records for a program. JSON: a list of objects, nothing measured is null. Otherwise a line of
    names and a line for each record, nothing measured an empty field."""
    if form == "json":
        rows = [{name: _json(record.get(name)) for name in names} for record in records]
        print(json.dumps(rows, ensure_ascii=False, indent=1, default=str))
        return
    print("\t".join(names))
    for record in records:
        print("\t".join(_field(record.get(name)) for name in names))


def _json(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _field(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())


def draw(
    title: str, names: Sequence[str], lines: Iterable[Sequence[str]], left: Iterable[str] = ()
) -> None:
    """A table of formatted cells, in rich markup. Columns in `left` hold text, which wraps within
    the terminal's width; others hold numbers, which don't. Nothing is truncated."""
    from rich.console import Console
    from rich.table import Table

    text_columns = set(left)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        is_text = name in text_columns
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
        )
    for line in lines:
        table.add_row(*line)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if title:
        console.print(title, style="bold")
    console.print(table)
