"""Text grids as LaTeX floats that are no wider than the text of an article."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from reports.rendering import Page, TextGrid, render

TEXT_PT = 345.0
"""`\\textwidth` of LaTeX's article in one column; that in two columns is wider."""
LETTER_PT = 5.0
"""Of `\\footnotesize`, with some room: digits have 4.2 points."""
GAP_PT = 6.0
"""Between two columns."""
MOST_LINES = 40
"""Of a float, so that it fits on a page with its caption."""
USUAL_PT, NOTE_PT = 4.4, 3.7
"""Of a letter of `\\footnotesize` and of `\\scriptsize`, to count the lines of broken text."""


class Group(NamedTuple):
    """Lines of a table under a title that spans its columns; an empty title is left out."""

    title: str
    lines: Sequence[Sequence[str]]


def floats(
    caption: str,
    head: Sequence[str],
    groups: Sequence[Group],
    notes: Sequence[str] = (),
    numbers: Collection[int] = (),
) -> Iterator[Markup]:
    """The table as `table*` floats: one, or several if it has more than MOST_LINES lines. The last
    has the notes. `numbers` are the right-aligned columns."""
    widths = _widths([head, *(line for group in groups for line in group.lines)])
    columns = _columns(widths, numbers)
    parts = [*_pages(groups, widths)]
    lines = [1 + sum(_height(line, widths) for line in group.lines) for group in parts[-1]]
    lines += [math.ceil(NOTE_PT * len(note) / TEXT_PT) for note in notes]
    if notes and sum(lines) > MOST_LINES:
        parts.append([])
    for number, part in enumerate(parts, start=1):
        more = f"(part {number} of {len(parts)})" if len(parts) > 1 else ""
        shown = caption if number == 1 else caption.partition(". ")[0]
        values = {"caption": shown, "more": more, "columns": columns, "head": head, "groups": part}
        under = notes if number == len(parts) else ()
        yield Markup(render("float.tex.j2", **values, n_columns=len(head), notes=under))


def grid_floats(grid: TextGrid) -> Iterator[Markup]:
    """A grid as floats. One with more columns than fit is divided; each part begins with the first
    column."""
    for chosen in _fitting(grid):
        lines = [[line[i] for i in chosen] for line in grid.lines]
        head = [grid.head[i] for i in chosen]
        numbers = {n for n, i in enumerate(chosen) if i in grid.numbers}
        note = [grid.note] if grid.note else []
        yield from floats(grid.caption, head, [Group("", lines)], note, numbers)


def report(pages: Sequence[Page]) -> str:
    """Pages as one file, for an article to include."""
    return render("report.tex.j2", pages=pages, floats=grid_floats)


def _pages(groups: Iterable[Group], widths: Sequence[float]) -> Iterator[list[Group]]:
    """The groups by float; a group that doesn't fit is divided."""
    page: list[Group] = []
    room = MOST_LINES
    for title, lines in groups:
        some: list[Sequence[str]] = []
        for line in lines:
            height = _height(line, widths)
            if room < height + bool(title) * (not some):
                yield [*page, Group(title, some)] if some else page
                page, some, room = [], [], MOST_LINES
            room -= height + bool(title) * (not some)
            some.append(line)
        page.append(Group(title, some))
    yield page


def _height(line: Sequence[str], widths: Sequence[float]) -> int:
    """The largest number of lines into which the text of a cell is broken."""
    cells = zip(line, widths, strict=True)
    return max(math.ceil(USUAL_PT * len(text) / width) for text, width in cells) or 1


def _fitting(grid: TextGrid) -> Iterator[list[int]]:
    """The columns of each part of a grid: as many as fit if each is as wide as its longest word."""
    words = [_word(column) for column in zip(grid.head, *grid.lines, strict=True)]
    chosen = [0]
    for i in range(1, len(words)):
        if len(chosen) > 1 and _total(words[n] for n in [*chosen, i]) > TEXT_PT:
            yield chosen
            chosen = [0]
        chosen.append(i)
    yield chosen


def _widths(lines: Sequence[Sequence[str]]) -> list[float]:
    """The widths of columns in points. Columns that don't fit on one line share the room that the
    longest words leave."""
    cells = [*zip(*lines, strict=True)]
    whole = [max(1, *map(len, column)) for column in cells]
    if _total(whole) <= TEXT_PT:
        return [LETTER_PT * n for n in whole]
    words = [_word(column) for column in cells]
    wanted = [math.sqrt(n) if n > word else 0 for n, word in zip(whole, words, strict=True)]
    room = max(0.0, TEXT_PT - _total(words))
    widths = [LETTER_PT * word + room * more / (sum(wanted) or 1)
              for word, more in zip(words, wanted, strict=True)]  # fmt: skip
    scale = min(1.0, (TEXT_PT - GAP_PT * (len(words) - 1)) / sum(widths))
    return [scale * width for width in widths]


def _columns(widths: Sequence[float], numbers: Collection[int]) -> Markup:
    """The specification of a tabular whose columns grow with the width of the text."""
    sides = ("\\raggedleft" if i in numbers else "\\raggedright" for i in range(len(widths)))
    shares = (math.floor(1000 * width / TEXT_PT) / 1000 for width in widths)
    return Markup(
        "".join(
            f">{{{side}\\arraybackslash}}p{{{share}\\textwidth}}"
            for side, share in zip(sides, shares, strict=True)
        )
    )


def _word(column: Iterable[str]) -> int:
    """The number of letters of the longest word: TeX breaks at blanks, and here after _ and /."""
    text = " ".join(column).replace("_", "_ ").replace("/", "/ ")
    return max((len(word) for word in text.split()), default=1)


def _total(letters: Iterable[int]) -> float:
    widths = [LETTER_PT * n for n in letters]
    return sum(widths) + GAP_PT * (len(widths) - 1)
