"""A paper's table: its lines, its cells, and the number of cells with each verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reports.intervals import Measured
from reports.papers.definitions import Definition
from reports.papers.printed import Printed
from reports.papers.verdicts import Judgement, PaperVerdict
from reports.rows import Row


class LineKey(NamedTuple):
    """What distinguishes the lines of a printed table."""

    part: str
    method: str
    size: str
    length: int | None
    settings: tuple[tuple[str, Any], ...] = ()

    def label(self, definition: Definition, sizes: bool, lengths: bool, unit: str = "") -> str:
        """The line's method, if wanted its size and its length with a unit, and its settings."""
        settings = ", ".join(f"{name}={value}" for name, value in self.settings)
        length = f"{self.length:,}{unit}" if lengths and self.length else ""
        label = definition.method(self.method).label
        return ", ".join(filter(None, (label, self.size if sizes else "", length, settings)))


@dataclass(frozen=True)
class PaperCell:
    """One printed cell and its measurement. `ratio` is the printed value as method / vanilla, if
    ratios are compared; `row` is the measured row, `other_rows` are rows of other settings that may
    be the paper's. `objections` are all reasons against comparing it, `doubts` the reasons why it
    decides nothing. `at_chance`: the score, or one of those that it averages, isn't clearly above
    the best constant answer's. `to_fused`, `comparison`: see reports.papers.to_unfused.Reading."""

    line: LineKey
    printed: Printed
    judgement: Judgement
    ratio: float | None = None
    measured: Measured | None = None
    to_fused: float | None = None
    is_ratio: bool = False
    row: Row | None = None
    objections: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    at_chance: bool = False
    comparison: str = ""
    other_rows: tuple[Row, ...] = ()

    @property
    def verdict(self) -> PaperVerdict:
        return self.judgement.verdict

    @property
    def reason(self) -> str:
        return self.judgement.reason


@dataclass(frozen=True)
class PaperTable:
    """A table of a report. `others` are rows of its methods and tasks that no cell uses."""

    definition: Definition
    cells: list[PaperCell]
    others: list[Row] = field(default_factory=list)

    @property
    def used(self) -> list[Row]:
        """The rows behind its cells, each once."""
        rows = [row for cell in self.cells for row in (cell.row, *cell.other_rows) if row]
        return list({row["row_id"]: row for row in rows}.values())

    def summary(self) -> str:
        """The number of cells, and the number with each verdict that any has."""
        parts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts().items() if count)
        return f"{len(self.cells):,} cells: {parts}"

    def counts(self) -> dict[str, int]:
        """Verdict → number of cells that have it."""
        counts = Counter(cell.verdict for cell in self.cells)
        return {str(verdict): counts[verdict] for verdict in PaperVerdict}
