"""A table in the paper's own shape: methods down, tasks and metrics across."""

from __future__ import annotations

from collections.abc import Iterator

from reports.build import Cell, LineKey, Table
from reports.elements import Grid
from reports.names import AT_CHANCE, metric_name, printed_text, rounded

MOST_COLUMNS = 10


def glance(table: Table) -> Iterator[Grid]:
    """A grid for each part of the table, but for parts with more columns than a page has room
    for. What was measured stands behind an arrow, with its verdict where there is one."""
    for part in dict.fromkeys(cell.line.part for cell in table.cells):
        cells = [cell for cell in table.cells if cell.line.part == part]
        columns = list(dict.fromkeys((c.printed.task, c.printed.metric) for c in cells))
        if len(columns) <= MOST_COLUMNS:
            yield _grid(table, part, cells, columns)


def _grid(table: Table, part: str, cells: list[Cell], columns: list[tuple[str, str]]) -> Grid:
    lines = list(dict.fromkeys(cell.line for cell in cells))
    sizes = len({line.size for line in lines}) > 1
    lengths = len({line.length for line in lines}) > 1
    held = {(cell.line, cell.printed.task, cell.printed.metric): cell for cell in cells}
    tasks, metrics = len({task for task, _ in columns}) > 1, len({name for _, name in columns}) > 1
    head = [
        " ".join([task] * tasks + [metric_name(name)] * (metrics or not tasks))
        for task, name in columns
    ]
    return Grid(
        f"{part or 'the table'}, in the paper's shape",
        ("method", *head),
        [
            (_label(table, line, sizes, lengths), *(_text(held.get((line, *c))) for c in columns))
            for line in lines
        ],
        frozenset(range(1, len(head) + 1)),
    )


def _label(table: Table, line: LineKey, sizes: bool, lengths: bool) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in line.settings)
    length = f"{line.length:,}" if lengths and line.length else ""
    size = line.size if sizes else ""
    return ", ".join(
        filter(None, (table.definition.method(line.method).label, size, length, settings))
    )


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = printed_text(cell.printed)
    if cell.measured is None:
        return text
    if cell.is_ratio and cell.ratio is not None:
        text = f"{text} = {rounded(cell.ratio, True)}"
    told = cell.judged.verdict if cell.judged.verdict != "cannot" else "not compared"
    chance = AT_CHANCE if cell.at_chance else ""
    return f"{text} → {rounded(cell.measured.value, cell.is_ratio)}{chance}, {told}"
