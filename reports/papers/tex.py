"""A paper's table as LaTeX: one float, with the reasons as notes below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bench.rows.row_facts import labelled
from bench.units import counted
from reports.intervals import interval
from reports.papers.table import PaperTable
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
    """Floats of the measured cells and the baseline; if there are none, of all printed cells."""
    baseline = PaperVerdict.BASELINE
    cells = [c for c in table.cells if c.measured or c.verdict is baseline] or table.cells
    left_out = [cell for cell in table.cells if cell not in cells]
    marks: dict[str, str] = {}
    numbered, label = Notes(table), line_labels(table, table.cells)
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
                f"{cell.verdict}{_mark(cell.reason, marks)}",
            )
        )
    notes = [f"{mark} {reason}." for reason, mark in marks.items()] + numbered.lines
    reasons = Counter(f"{c.verdict} ({c.reason})" if c.reason else str(c.verdict) for c in left_out)
    notes += [f"Not shown: {n} of the printed cells, {why}." for why, n in reasons.items()]
    notes += [CHANCE_NOTE] if any(cell.at_chance for cell in cells) else []
    notes += [line[:1].upper() + line[1:] for line in measured_hardware(table.used)]
    notes += dict.fromkeys(map(_configuration, table.used))
    if ids := ", ".join(row["row_id"][:8] for row in table.used):
        notes.append(f"Rows: {ids}.")
    caption = f"{table.definition.heading}. {table.summary()}. {LEGEND}"
    return floats(caption, HEAD, [Group(*one) for one in groups.items()], notes)


def _configuration(row: Row) -> str:
    model = labelled(row["model"] or "–", row)
    words = (f"{row['weights_kind']} weights", f"{row['data_source']} data", row["dtype"])
    where = f"{row['device']}, {counted(row['threads'], 'thread')}"
    return f"Measured on {model}: {', '.join(map(str, words))}, batch {row['batch']}, {where}."


def _mark(reason: str, marks: dict[str, str]) -> str:
    """The mark of a verdict's reason, which is written once below the table; `marks` are those
    given so far."""
    if not reason:
        return ""
    times, n = divmod(len(marks), len(SUPERSCRIPTS))
    return marks.setdefault(reason, [*SUPERSCRIPTS][n] * (1 + times))
