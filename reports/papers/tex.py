"""A paper's table as LaTeX: one float, with the reasons as notes below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.rows.quality_verdicts import labelled
from bench.units import counted
from reports.intervals import interval
from reports.papers.table import PaperCell, PaperTable
from reports.papers.verdicts import RATIO_FACTOR, SCORE_POINTS, PaperVerdict
from reports.papers.view import (
    CHANCE_NOTE,
    Notes,
    line_labels,
    measured_hardware,
    metric_label,
    published_text,
)
from reports.rendering import SUPERSCRIPTS, render
from reports.rows import Row
from reports.tex import Group, floats

HEAD = ("method", "published", "measured", "verdict")
LEGEND = (
    "Published values and values measured again with their 95 % intervals. A ratio is method / "
    "unfused attention: below 1 is better. Reproduced: the interval is within "
    f"{SCORE_POINTS:g} points of a score or a factor of {RATIO_FACTOR:g} of a ratio; differs: it "
    "excludes the published value, and the measured one is outside that tolerance."
)


def tables(tables: Sequence[PaperTable]) -> str:
    """The floats of these tables, for an article to include."""
    return render("floats.tex.j2", floats=[one for table in tables for one in _floats(table)])


def _floats(table: PaperTable) -> Iterator[str]:
    """A float of the cells with a measured value; if there are none, of all printed cells."""
    cells = [cell for cell in table.cells if cell.measured or cell.verdict in DONE] or table.cells
    left_out = [cell for cell in table.cells if cell not in cells]
    marks, numbered, label = _Reasons(), Notes(table), line_labels(table, table.cells)
    groups: dict[str, list[tuple[str, ...]]] = {}
    for cell in cells:
        line = cell.line
        parts = (line.part, cell.printed.task, cell.printed.split, metric_label(cell))
        title = " · ".join(dict.fromkeys(filter(None, parts)))
        groups.setdefault(title, []).append(
            (
                label(line),
                published_text(cell, numbered),
                interval(cell.measured, cell.is_ratio, cell.at_chance).replace(" … ", "–"),
                f"{cell.verdict}{marks.mark(cell)}",
            )
        )
    notes = [*marks.lines, *numbered.lines, *_missing(left_out)]
    notes += [CHANCE_NOTE] if any(cell.at_chance for cell in cells) else []
    notes += [line[:1].upper() + line[1:] for line in measured_hardware(table.used)]
    notes += dict.fromkeys(map(_configuration, table.used))
    if ids := ", ".join(row["row_id"][:8] for row in table.used):
        notes.append(f"Rows: {ids}.")
    caption = f"{table.definition.heading}. {table.summary()}. {LEGEND}"
    yield from floats(caption, HEAD, [Group(*one) for one in groups.items()], notes)


DONE = (PaperVerdict.BASELINE,)
"""Verdicts of cells that are shown without a measured value."""


def _configuration(row: Row) -> str:
    model = labelled(row["model"] or "–", row)
    words = (f"{row['weights_kind']} weights", f"{row['data_source']} data", row["dtype"])
    where = f"{row['device']}, {counted(row['threads'], 'thread')}"
    return f"Measured on {model}: {', '.join(map(str, words))}, batch {row['batch']}, {where}."


def _missing(cells: Sequence[PaperCell]) -> Iterator[str]:
    """The number of printed cells that are not in the table, for each reason."""
    reasons: dict[str, int] = {}
    for cell in cells:
        why = f"{cell.verdict}{f' ({cell.reason})' if cell.reason else ''}"
        reasons[why] = reasons.get(why, 0) + 1
    for why, n in reasons.items():
        yield f"Not shown: {n} of the printed cells, {why}."


class _Reasons:
    """A mark for each reason of a verdict, which is written once below the table."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, cell: PaperCell) -> str:
        if not cell.reason:
            return ""
        n = len(self._marks)
        names = [*SUPERSCRIPTS]
        new = names[n % len(names)] * (1 + n // len(names))
        return self._marks.setdefault(cell.reason, new)

    @property
    def lines(self) -> list[str]:
        return [f"{mark} {reason}." for reason, mark in self._marks.items()]
