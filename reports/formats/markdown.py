"""A document as Markdown, GitHub's kind. Text from outside can't become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reports.elements import Code, Element, Grid, Heading, Items, plain

MARKUP = re.compile(r"[\\`*_{}\[\]|#~]")
HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
LINE_START = re.compile(r"^(\d+)([.)])|^([-+])(?=\s)")


def write(elements: Iterable[Element]) -> str:
    return "\n".join(part for element in elements for part in _element(element))


def _element(element: Element) -> list[str]:
    if isinstance(element, Heading):
        return [f"{'#' * element.level} {escape(element.text)}", ""]
    if isinstance(element, Grid):
        return [f"### {escape(element.caption)}", "", *_grid(element), ""]
    if isinstance(element, Items):
        return [*(f"- {_item(item)}" for item in element.items), ""]
    return [line_start(escape(element.text)), ""]


def _item(item: str | tuple[str, str]) -> str:
    if isinstance(item, str):
        return line_start(escape(item))
    return f"{escape(item[0])}: {code(item[1]) if isinstance(item[1], Code) else escape(item[1])}"


def _grid(grid: Grid) -> list[str]:
    lines = [[escape(text) for text in line] for line in (grid.head, *grid.lines)]
    widths = [max(3, *(len(line[at]) for line in lines)) for at in range(len(grid.head))]
    rule = ["-" * (w - 1) + (":" if at in grid.numbers else "-") for at, w in enumerate(widths)]
    return [_row(line, widths, grid) for line in (lines[0], rule, *lines[1:])]


def _row(line: Sequence[str], widths: Sequence[int], grid: Grid) -> str:
    padded = (
        text.rjust(width) if at in grid.numbers else text.ljust(width)
        for at, (text, width) in enumerate(zip(line, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"


def escape(text: str) -> str:
    """Text that is shown as it is: no markup, no HTML, no new line."""
    marked = MARKUP.sub(lambda found: "\\" + found[0], plain(text))
    return re.sub("[&<>]", lambda found: HTML[found[0]], marked)


def line_start(text: str) -> str:
    """So that a line's first word begins no list."""
    return LINE_START.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", text)


def code(text: str) -> str:
    """Text of a terminal, behind as many backticks as it needs."""
    line = plain(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if fence != "`" else ""
    return f"{fence}{space}{line}{space}{fence}"
