"""Tables of many rows: drawn for a person at a terminal; tab-separated or JSON for a program."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

FORMATS = ("auto", "table", "tsv", "json")
PIPE_WIDTH, PIPE_HEIGHT = 1000, 25
"""Columns and lines of a table that is drawn where there is no terminal: nothing wraps."""
GAP = 2


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
    """A table of formatted cells, in rich markup; columns in `left` hold text, others numbers.
    Cells wrap at words. Where the terminal is too narrow for that, each line of the table becomes
    a line for each of its cells. Nothing is truncated."""
    from bench.terminal.console import Console

    table = _table(names, lines := [*lines], set(left))
    # Without a height, rich takes 80 columns where TERM=dumb and FORCE_COLOR are set.
    width, height = (None, None) if sys.stdout.isatty() else (PIPE_WIDTH, PIPE_HEIGHT)
    console = Console(highlight=False, width=width, height=height)
    if title:
        console.print(title, style="bold")
    if sum((column.min_width or 0) + GAP for column in table.columns) > console.width:
        _print_stacked(console, names, lines)
    else:
        console.print(table)


def _table(names: Sequence[str], lines: Sequence[Sequence[str]], text_columns: set[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for i, name in enumerate(names):
        cells = [name, *(Text.from_markup(line[i]).plain for line in lines if i < len(line))]
        longest = max((len(word) for cell in cells for word in cell.split()), default=0)
        table.add_column(
            name,
            justify="left" if name in text_columns else "right",
            min_width=longest,
            overflow="fold",
        )
    for line in lines:
        table.add_row(*line)
    return table


def _print_stacked(console: Any, names: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    width = max(map(len, names))
    for number, line in enumerate(lines):
        if number:
            console.print()
        for name, cell in zip(names, line, strict=False):
            if cell:
                console.print(f"[bold]{name:<{width}}[/]  {cell}", soft_wrap=True)


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Plain lines whose columns are as wide as their widest cell; `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'>' if i in right else '<'}{n}}}" for i, n in enumerate(widths))
    return [form.format(*line).rstrip() for line in lines]
