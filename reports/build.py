"""A paper's table beside the stored rows: every cell with its verdict, and what stands beneath.

Nothing is run. What is compared, and when a cell counts as reproduced: reports/verdicts.py and
docs/tables.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bench.rows import Row
from reports import measured, verdicts
from reports.definitions import Definition, MethodHere, MetricHere
from reports.measured import Found, Rows
from reports.objections import objections
from reports.papers import IN_KEY, Printed
from reports.verdicts import Judged, Measured

NO_VANILLA = "the paper prints no vanilla at this length and size"


class LineKey(NamedTuple):
    """What makes one line of a printed table."""

    part: str
    method: str
    size: str
    length: int | None
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Cell:
    """One printed cell and what was measured. `ratio` is the printed value as method / vanilla,
    where ratios are what is compared; `row` the row that was measured, `objections` everything
    that speaks against comparing it. `at_chance`: a score, or one of those that it is the mean of,
    isn't clearly above the best constant answer's."""

    line: LineKey
    printed: Printed
    judged: Judged
    ratio: float | None = None
    measured: Measured | None = None
    is_ratio: bool = False
    row: Row | None = None
    objections: tuple[str, ...] = ()
    at_chance: bool = False


@dataclass(frozen=True)
class Table:
    """A table to be written. `others` are rows of its methods and tasks that no cell took."""

    definition: Definition
    cells: list[Cell]
    others: list[Row] = field(default_factory=list)

    @property
    def used(self) -> list[Row]:
        """The rows behind its cells, each once."""
        found = {cell.row["row_id"]: cell.row for cell in self.cells if cell.row}
        return list(found.values())

    def counts(self) -> dict[str, int]:
        """How many cells have each verdict."""
        found = dict.fromkeys(("reproduced", "differs", "not run", "cannot"), 0)
        for cell in self.cells:
            found[cell.judged.verdict] += 1
        return found


def build(definition: Definition, printed: Sequence[Printed], rows: Rows) -> Table:
    """The table of these printed cells, those of other tables left out."""
    own = [cell for part in definition.parts for cell in printed if cell.table == part]
    own += list(_unsourced(definition))
    builder = _Builder(definition, own, rows)
    cells = [builder.cell(line, cell) for line, cell in _lines(definition, own)]
    taken = {cell.row["row_id"] for cell in cells if cell.row}
    return Table(
        definition, cells, [row for row in builder.related() if row["row_id"] not in taken]
    )


def _unsourced(definition: Definition) -> Iterator[Printed]:
    """The cells of a table whose numbers aren't known."""
    if known := definition.unsourced:
        size = next(iter(definition.models))
        for method in known.methods:
            for task in known.tasks:
                yield Printed(
                    paper=definition.paper, table="", method=method, model_size=size, params="",
                    length=None, task=task, metric=known.metric, value=None, text="?", unit="",
                    hardware="", split="", source="", where="", meaning=known.why,
                )  # fmt: skip


def _lines(definition: Definition, printed: Iterable[Printed]) -> Iterator[tuple[LineKey, Printed]]:
    """Each cell with its line. A word whose size isn't told belongs to its method's first line."""
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
    def __init__(self, definition: Definition, printed: Sequence[Printed], rows: Rows) -> None:
        self.definition, self.rows = definition, rows
        self.vanilla = {
            (c.table, c.model_size, c.length, c.task, c.metric): c
            for c in printed
            if c.method in definition.reference and c.value is not None
        }

    def cell(self, line: LineKey, printed: Printed) -> Cell:
        definition = self.definition
        method, metric = definition.method(printed.method), definition.metric(printed.metric)
        is_ratio = metric.measure in measured.RATIOS
        ratio, margin = self._printed_ratio(printed, metric) if is_ratio else (None, 0.0)
        reason = self._cannot(printed, method, metric)
        if reason:
            return Cell(line, printed, Judged("cannot", reason), ratio, is_ratio=is_ratio)
        if printed.task in definition.averages:
            return self._average(line, printed, metric)
        row, found, why = self._best(line, printed, method, metric)
        if found is None:
            why = why or (NO_VANILLA if is_ratio and ratio is None else "")
            judged = Judged("cannot", why) if why else Judged("not run")
            return Cell(line, printed, judged, ratio, is_ratio=is_ratio, row=row)
        judged = self._judge(printed, ratio, margin, found, is_ratio)
        return Cell(
            line, printed, judged, ratio, found.measured, is_ratio, row, found.objections,
            found.at_chance,
        )  # fmt: skip

    def _printed_ratio(self, printed: Printed, metric: MetricHere) -> tuple[float | None, float]:
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

    def _cannot(self, printed: Printed, method: MethodHere, metric: MetricHere) -> str | None:
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
        if relative and printed.method in definition.reference:
            return "what ratios are formed against"
        return None

    def _best(
        self, line: LineKey, printed: Printed, method: MethodHere, metric: MetricHere
    ) -> tuple[Row | None, Found | None, str]:
        """The row that speaks best of a cell, what it says, or why it says nothing."""
        best: tuple[tuple[Any, ...], Row, Found] | None = None
        failed: Row | None = None
        lacks = ""
        for row in self._candidates(line, printed, method):
            if row["status"] != "ok":
                failed = row
                continue
            found = measured.figure(row, metric.measure or "", metric.figures, self.rows)
            if found is None:
                if metric.measure == "score" and row["value"] is not None:
                    lacks = f"the task's metric here, {row['metric']}, has no {printed.metric}"
                continue
            against = tuple(objections(self.definition, row, printed, method, metric))
            found = found._replace(objections=(*against, *found.objections))
            rank = (-len(found.objections), found.measured.n or 0, row["created_utc"] or "")
            if best is None or rank > best[0]:
                best = (rank, row, found)
        if best:
            return best[1], best[2], ""
        if failed:
            first = (failed["status_detail"] or "no reason given").splitlines()[0]
            return failed, None, f"{failed['status']}: {first}"
        return None, None, lacks

    def _candidates(self, line: LineKey, printed: Printed, method: MethodHere) -> Iterator[Row]:
        """Rows of the cell's method, task, length and settings, and of its size; rows of no printed
        size stand at the first."""
        definition = self.definition
        task = definition.task(printed.task).task or ""
        sizes = definition.models
        size = definition.size(printed)
        home = size in ("", next(iter(sizes), ""))
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
        self, printed: Printed, ratio: float | None, margin: float, found: Found, is_ratio: bool
    ) -> Judged:
        if found.objections:
            first, *more = found.objections
            return Judged("cannot", f"{first} (+{len(more)} more)" if more else first)
        assert printed.value is not None
        if not is_ratio:
            return verdicts.score(printed.value, printed.margin, found.measured)
        if ratio is None:
            return Judged("cannot", NO_VANILLA)
        return verdicts.ratio(ratio, margin, found.measured)

    def _average(self, line: LineKey, printed: Printed, metric: MetricHere) -> Cell:
        """The mean over tasks, from the cells of the tasks."""
        names = self.definition.averages[printed.task]
        if metric.measure != "score":
            why = "a mean over tasks is formed of scores only"
            return Cell(line, printed, Judged("cannot", why))
        method = self.definition.method(printed.method)
        parts: list[Found] = []
        missing = []
        for name in names:
            single = _of_task(printed, name)
            _, found, _ = self._best(line, single, method, MetricHere("score"))
            if found:
                parts.append(found)
            else:
                missing.append(name)
        if missing:
            why = f"not run: {len(parts)} of {len(names)} tasks are measured" if parts else ""
            return Cell(line, printed, Judged("not run", why))
        against = tuple(dict.fromkeys(o for part in parts for o in part.objections))
        at_chance = any(part.at_chance for part in parts)
        found = Found(verdicts.mean([part.measured for part in parts]), against, at_chance)
        judged = self._judge(printed, None, 0.0, found, is_ratio=False)
        return Cell(
            line, printed, judged, None, found.measured, objections=against, at_chance=at_chance
        )

    def related(self) -> list[Row]:
        """All rows of the table's methods and tasks, newest first."""
        tasks = {task.task for task in self.definition.tasks.values() if task.task}
        methods = {m.method for m in self.definition.methods.values() if m.method}
        found = [row for m in sorted(methods) for t in sorted(tasks) for row in self.rows.of(m, t)]
        return sorted(found, key=lambda row: row["created_utc"] or "", reverse=True)


def _of_task(printed: Printed, task: str) -> Printed:
    """The cell of one task of an average; its own number isn't asked for."""
    return replace(printed, task=task, length=None)
