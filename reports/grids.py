"""Declarative tables over stored rows: their rows, lines and columns, and the text of a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.status import Status
from reports.looks import VANILLA, looks
from reports.rendering import TextGrid
from reports.rows import Row, created, grouped
from reports.wording import NONE

Where = Mapping[str, Any]
"""Column → its value in the chosen rows, a tuple of such values, or a test of the value."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Tables of one kind.

    title     the caption, from a row of the table
    where     the rows that the tables have
    each      columns; each combination of their values has a table
    one_host  whether a table has only the rows of one host (see `of_one_host`)
    """

    title: Callable[[Row], str] = lambda row: ""
    where: Where = field(default_factory=dict)
    each: tuple[str, ...] = ()
    one_host: bool = False

    def tables(self, rows: Iterable[Row]) -> list[tuple[TextGrid, list[Row]]]:
        """Each table with its rows; no table if no row is chosen."""
        found = grouped(chosen(rows, self.where), lambda row: tuple(row[n] for n in self.each))
        kept = [of_one_host(group) if self.one_host else group for group in found.values()]
        return [(self.table(group), group) for group in kept if group]

    def table(self, rows: Sequence[Row]) -> TextGrid:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Grid(Table):
    """A line for each method and a column for each value of the column `column`; `cell` gives the
    text of the last row with both. `last` are further columns: head → text from the method's row
    with the greatest value and vanilla's row there."""

    column: str
    cell: Callable[[Row], str]
    head: Callable[[Any], str] = str
    last: Mapping[str, Callable[[Row, Row], str]] = field(default_factory=dict)

    def table(self, rows: Sequence[Row]) -> TextGrid:
        cells = {(row["method"], row[self.column]): row for row in rows}
        values = sorted({value for _, value in cells})

        def text(value: Any, method: str) -> str:
            row = cells.get((method, value))
            return NONE if row is None else self.cell(row)

        def of_last(cell: Callable[[Row, Row], str], method: str) -> str:
            row, base = (cells.get((name, values[-1])) for name in (method, VANILLA))
            return NONE if row is None or base is None else cell(row, base)

        columns = {self.head(value): partial(text, value) for value in values}
        columns |= {head: partial(of_last, cell) for head, cell in self.last.items()}
        return text_grid(self.title(rows[0]), "method", looks(m for m, _ in cells), columns)


@dataclass(frozen=True, kw_only=True)
class Listing(Table):
    """A line for each row.

    columns  head → the text of a row: a template of str.format with its columns, or a function
    order    columns by which lines are sorted before the method: numbers rise, texts keep their
             order of appearance; None: lines keep the order of the rows
    numbers  the right-aligned columns
    """

    columns: Mapping[str, str | Callable[[Row], str]]
    order: tuple[str, ...] | None = ()
    numbers: frozenset[int] = frozenset()

    def table(self, rows: Sequence[Row]) -> TextGrid:
        if self.order is not None:
            ranks: dict[str, list[Any]] = {}
            for name in self.order:
                values = list(dict.fromkeys(row[name] for row in rows))
                ranks[name] = values if isinstance(values[0], str) else sorted(values)
            ranks["method"] = list(looks(row["method"] for row in rows))
            rows = sorted(rows, key=lambda row: [ranks[name].index(row[name]) for name in ranks])

        def cell(text: str | Callable[[Row], str], row: Row) -> str:
            return text.format_map(row) if isinstance(text, str) else text(row)

        lines = [[cell(text, row) for text in self.columns.values()] for row in rows]
        return TextGrid(self.title(rows[0]), list(self.columns), lines, self.numbers)


def text_grid(
    caption: str, corner: str, lines: Iterable[str], columns: Mapping[str, Callable[[str], str]]
) -> TextGrid:
    """A grid with a line for each name; `columns` are head → function that gives the text of a
    line, by its name."""
    texts = [[name, *(text(name) for text in columns.values())] for name in lines]
    return TextGrid(caption, [corner, *columns], texts)


def chosen(rows: Iterable[Row], where: Where) -> Iterator[Row]:
    """The rows whose columns have these values."""
    for row in rows:
        if all(_fits(row[name], wanted) for name, wanted in where.items()):
            yield row


def _fits(value: Any, wanted: Any) -> bool:
    if callable(wanted):
        return bool(wanted(value))
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def of_one_host(rows: Sequence[Row]) -> list[Row]:
    """The rows of the host with the most rows; of several such hosts, the one that measured last.
    Rows that a sweep skipped do not count."""
    newest_first = sorted(rows, key=created, reverse=True)
    # For equal counts, most_common returns the host that it met first.
    hosts = Counter(row["host_id"] for row in newest_first if row["status"] != Status.SKIPPED)
    most = next((host for host, _ in hosts.most_common(1)), None)
    return [row for row in rows if row["host_id"] == most]


def tokens(length: int) -> str:
    """The head of a column for a length."""
    return f"{length:,} tokens"
