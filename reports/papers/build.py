"""A paper's table beside the stored rows: every printed cell with what was measured and a verdict.

Nothing is run. When a cell counts as reproduced: reports/papers/verdicts.py and docs/tables.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bench.status import Status
from reports.papers import measured, verdicts
from reports.papers.definitions import Definition, PaperMethod, PaperMetric
from reports.papers.measured import Reading, StoredRows
from reports.papers.objections import objections
from reports.papers.printed import IN_KEY, Printed
from reports.papers.verdicts import Judgement, Measured, PaperVerdict
from reports.rows import Row

NO_VANILLA = "the paper prints no vanilla at this length and size"
IS_REFERENCE = "what ratios are formed against"
OWN_MODEL = "a model of its own: no row has its ratio to the table's model"


class LineKey(NamedTuple):
    """What distinguishes the lines of a printed table."""

    part: str
    method: str
    size: str
    length: int | None
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class PaperCell:
    """One printed cell and what was measured. `ratio` is the printed value as method / vanilla,
    where ratios are compared; `row` is the row that was measured, `objections` are all reasons
    against comparing it. `at_chance`: the score, or one of those that it averages, isn't clearly
    above the best constant answer's. `comparison`: see reports.papers.measured.Reading."""

    line: LineKey
    printed: Printed
    judgement: Judgement
    ratio: float | None = None
    measured: Measured | None = None
    is_ratio: bool = False
    row: Row | None = None
    objections: tuple[str, ...] = ()
    at_chance: bool = False
    comparison: str = ""

    @property
    def verdict(self) -> PaperVerdict:
        return self.judgement.verdict

    @property
    def reason(self) -> str:
        return self.judgement.reason


@dataclass(frozen=True)
class PaperTable:
    """A table to be written. `others` are rows of its methods and tasks that no cell uses."""

    definition: Definition
    cells: list[PaperCell]
    others: list[Row] = field(default_factory=list)

    @property
    def used(self) -> list[Row]:
        """The rows behind its cells, each once."""
        return list({cell.row["row_id"]: cell.row for cell in self.cells if cell.row}.values())

    def summary(self) -> str:
        """How many cells there are, and how many have each verdict."""
        parts = (f"{count} {verdict}" for verdict, count in self._counts().items())
        return f"{len(self.cells)} cells: {', '.join(parts)}"

    def record(self) -> dict[str, Any]:
        """The table in the list of tables for a program."""
        names = {"name": self.definition.name, "title": self.definition.heading}
        return {**names, "cells": len(self.cells), **self._counts()}

    def _counts(self) -> dict[str, int]:
        counts = Counter(cell.verdict for cell in self.cells)
        return {str(verdict): counts[verdict] for verdict in PaperVerdict}


def build_table(definition: Definition, printed: Sequence[Printed], rows: StoredRows) -> PaperTable:
    """The table of these printed cells, those of other tables left out."""
    own = [cell for part in definition.parts for cell in printed if cell.table == part]
    own += list(_unsourced(definition))
    builder = _Builder(definition, own, rows)
    cells = [builder.cell(line, cell) for line, cell in _lines(definition, own)]
    taken = {cell.row["row_id"] for cell in cells if cell.row}
    return PaperTable(
        definition, cells, [row for row in builder.related() if row["row_id"] not in taken]
    )


def _unsourced(definition: Definition) -> Iterator[Printed]:
    """The cells of a table whose numbers aren't known."""
    if unsourced := definition.unsourced:
        size = next(iter(definition.models))
        for method in unsourced.methods:
            for task in unsourced.tasks:
                yield Printed(
                    paper=definition.paper, table="", method=method, model_size=size, params="",
                    length=None, task=task, metric=unsourced.metric, value=None, text="?", unit="",
                    hardware="", split="", source="", where="", meaning=unsourced.why,
                )  # fmt: skip


def _lines(definition: Definition, printed: Iterable[Printed]) -> Iterator[tuple[LineKey, Printed]]:
    """Each cell with its line. Text without a size belongs to its method's first line."""
    first: dict[tuple[str, str, int | None], LineKey] = {}
    for cell in printed:
        settings = tuple((k, cell.extra[k]) for k in IN_KEY if k in cell.extra)
        line = LineKey(cell.table, cell.method, cell.model_size, cell.length, settings)
        place = (cell.table, cell.method, cell.length)
        if cell.value is None and not cell.model_size and place in first:
            line = first[place]
        first.setdefault(place, line)
        yield line, cell


class _Builder:
    def __init__(
        self, definition: Definition, printed: Sequence[Printed], rows: StoredRows
    ) -> None:
        self.definition, self.rows = definition, rows
        self.vanilla = {
            (c.table, c.model_size, c.length, c.task, c.metric): c
            for c in printed
            if c.method in definition.reference and c.value is not None
        }

    def cell(self, line: LineKey, printed: Printed) -> PaperCell:
        definition = self.definition
        method, metric = definition.method(printed.method), definition.metric(printed.metric)
        is_ratio = metric.measure in measured.RATIOS
        ratio, margin = self._printed_ratio(printed, metric) if is_ratio else (None, 0.0)
        reason = self._cannot(printed, method, metric)
        if reason:
            judgement = Judgement(PaperVerdict.NOT_COMPARABLE, reason)
            return PaperCell(line, printed, judgement, ratio, is_ratio=is_ratio)
        if printed.task in definition.averages:
            return self._average(line, printed, metric)
        row, reading, why = self._best(line, printed, method, metric)
        if reading is None:
            why = why or (NO_VANILLA if is_ratio and ratio is None else "")
            verdict = PaperVerdict.NOT_COMPARABLE if why else PaperVerdict.NOT_RUN
            return PaperCell(line, printed, Judgement(verdict, why), ratio, None, is_ratio, row)
        judgement = self._judge(printed, ratio, margin, reading, is_ratio)
        return PaperCell(
            line, printed, judgement, ratio, reading.measured, is_ratio, row, reading.objections,
            reading.at_chance, reading.comparison,
        )  # fmt: skip

    def _printed_ratio(self, printed: Printed, metric: PaperMetric) -> tuple[float | None, float]:
        """The printed value as method / vanilla, with its relative margin; None without vanilla."""
        if not printed.value:
            return None, 0.0
        margin = printed.margin / printed.value
        value = printed.value
        if not printed.unit.startswith("x "):
            line = (printed.table, printed.model_size, printed.length)
            vanilla = self.vanilla.get((*line, printed.task, printed.metric))
            if vanilla is None or not vanilla.value:
                return None, 0.0
            value, margin = value / vanilla.value, margin + vanilla.margin / vanilla.value
        return (1 / value if metric.inverse else value), margin

    def _cannot(self, printed: Printed, method: PaperMethod, metric: PaperMetric) -> str | None:
        """Why this cell can't be measured at all."""
        definition = self.definition
        if method.cannot:
            return method.cannot
        if metric.cannot and not metric.measure:
            return metric.cannot
        if printed.task not in definition.averages:
            task = definition.task(printed.task)
            if task.cannot:
                return task.cannot
        if printed.value is None and not definition.unsourced:
            return f"the paper prints no number ({printed.meaning})"
        relative = metric.measure in measured.RATIOS or metric.measure == "score_kept"
        if relative and method.models:
            return OWN_MODEL
        if relative and printed.method in definition.reference:
            return IS_REFERENCE
        return None

    def _best(
        self, line: LineKey, printed: Printed, method: PaperMethod, metric: PaperMetric
    ) -> tuple[Row | None, Reading | None, str]:
        """The row that fits a cell best and its figure, or why there is none."""
        best: tuple[tuple[Any, ...], Row, Reading] | None = None
        failed: Row | None = None
        lacks = ""
        for row in self._candidates(line, printed, method):
            if row["status"] != Status.OK:
                failed = row
                continue
            reading = measured.figure(row, metric.measure or "", metric.figures, self.rows)
            if reading is None:
                if metric.measure == "score" and row["value"] is not None:
                    lacks = f"the task's metric here, {row['metric']}, has no {printed.metric}"
                continue
            of_row = tuple(objections(self.definition, row, printed, method, metric))
            reading = reading._replace(objections=(*of_row, *reading.objections))
            rank = (-len(reading.objections), reading.measured.n or 0, row["created_utc"] or "")
            if best is None or rank > best[0]:
                best = (rank, row, reading)
        if best:
            return best[1], best[2], ""
        if failed:
            first = (failed["status_detail"] or "no reason given").splitlines()[0]
            return failed, None, f"{failed['status']}: {first}"
        return None, None, lacks

    def _candidates(self, line: LineKey, printed: Printed, method: PaperMethod) -> Iterator[Row]:
        """Rows of the cell's method, task, length, settings and size; rows of no printed size are
        candidates for the first size."""
        definition = self.definition
        task = definition.task(printed.task).task or ""
        sizes = definition.models_of(method)
        size = definition.size(printed)
        home = not method.models and size in ("", next(iter(sizes), ""))
        strict = printed.length is not None and not definition.any_length
        like = sizes[size].like if size in sizes else ()
        settings = dict(line.settings) if definition.settings else {}
        every = [pattern for size in sizes.values() for pattern in size.like]
        for row in self.rows.of(method.method or "", task):
            if strict and row["length"] != printed.length:
                continue
            if not measured.of_size(row, like) and not (home and not measured.of_size(row, every)):
                continue
            given = measured.parameters(row)
            if all(given.get(name) == settings[name] for name in settings):
                yield row

    def _judge(
        self, printed: Printed, ratio: float | None, margin: float, reading: Reading, is_ratio: bool
    ) -> Judgement:
        if reading.objections:
            first, *more = reading.objections
            return Judgement(
                PaperVerdict.NOT_COMPARABLE, f"{first} (+{len(more)} more)" if more else first
            )
        assert printed.value is not None
        if not is_ratio:
            return verdicts.judge_score(printed.value, printed.margin, reading.measured)
        if ratio is None:
            return Judgement(PaperVerdict.NOT_COMPARABLE, NO_VANILLA)
        return verdicts.judge_ratio(ratio, margin, reading.measured)

    def _average(self, line: LineKey, printed: Printed, metric: PaperMetric) -> PaperCell:
        """The mean over tasks, from the cells of the tasks."""
        names = self.definition.averages[printed.task]
        if metric.measure != "score":
            why = "a mean over tasks is formed of scores only"
            return PaperCell(line, printed, Judgement(PaperVerdict.NOT_COMPARABLE, why))
        method = self.definition.method(printed.method)
        parts: list[Reading] = []
        missing = []
        for name in names:
            single = replace(printed, task=name, length=None)
            _, reading, _ = self._best(line, single, method, PaperMetric("score"))
            if reading:
                parts.append(reading)
            else:
                missing.append(name)
        if missing:
            why = f"{len(parts)} of {len(names)} tasks are measured" if parts else ""
            return PaperCell(line, printed, Judgement(PaperVerdict.NOT_RUN, why))
        against = tuple(dict.fromkeys(o for part in parts for o in part.objections))
        at_chance = any(part.at_chance for part in parts)
        average = Reading(verdicts.mean([part.measured for part in parts]), against, at_chance)
        judgement = self._judge(printed, None, 0.0, average, is_ratio=False)
        return PaperCell(
            line, printed, judgement, None, average.measured, False, None, against, at_chance
        )

    def related(self) -> list[Row]:
        """All rows of the table's methods and tasks, newest first."""
        methods, tasks = self.definition.measured_names()
        rows = [row for m in sorted(methods) for t in sorted(tasks) for row in self.rows.of(m, t)]
        return sorted(rows, key=lambda row: row["created_utc"] or "", reverse=True)
