"""A paper's table next to the stored rows: every printed cell with its measurement and a verdict.

Nothing is run. reports/papers/verdicts.py and docs/tables.md define when a cell is reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.status import Status
from reports.intervals import mean
from reports.papers import measured, objections, verdicts
from reports.papers.definitions import Definition, PaperMethod, PaperMetric
from reports.papers.measured import StoredRows
from reports.papers.printed import IN_KEY, Printed
from reports.papers.table import LineKey, PaperCell, PaperTable
from reports.papers.to_unfused import Reading
from reports.papers.verdicts import Judgement, PaperVerdict
from reports.rows import Row, created, json_object

NO_VANILLA = (
    "the paper prints no vanilla at this length and size, and times of other hardware aren't "
    "compared"
)
IS_REFERENCE = "1 by definition: ratios are formed against it"
UNFUSED_FAILED = "unfused attention, the paper's vanilla, ended with"
ENDS_DISAGREE = "the paper's setting isn't known, and the ends of what was searched disagree"
DECIDING = (PaperVerdict.REPRODUCED, PaperVerdict.DIFFERS, PaperVerdict.UNDECIDED)
OWN_MODEL = "a model of its own, which isn't timed in pairs with the table's model"


def build_table(definition: Definition, printed: Sequence[Printed], rows: StoredRows) -> PaperTable:
    """The table of these printed cells; cells of other tables are left out."""
    own = [cell for part in definition.parts for cell in printed if cell.table == part]
    own += list(_unsourced(definition))
    builder = _Builder(definition, own, rows)
    table = PaperTable(definition, [builder.cell(*one) for one in _lines(definition, own)])
    taken = {row["row_id"] for row in table.used}
    others = [row for row in builder.related() if row["row_id"] not in taken]
    return replace(table, others=others)


def _unsourced(definition: Definition) -> Iterator[Printed]:
    """The cells of a table whose numbers aren't known."""
    if unsourced := definition.unsourced:
        size = next(iter(definition.models))
        for method in unsourced.methods:
            for task in unsourced.tasks:
                yield Printed(
                    paper=definition.paper, table="", method=method, model_size=size, task=task,
                    metric=unsourced.metric, value=None, text="?", meaning=unsourced.why,
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


def _between(ends: Mapping[str, PaperCell]) -> PaperCell:
    """The cell of an unknown setting, from the same cell at the settings of the least and of the
    greatest cost (setting → cell). It has a verdict if both have the same, on the same side."""
    cells = list(ends.values())
    for setting, cell in ends.items():
        if cell.verdict is PaperVerdict.NO_ROW and any(one.verdict in DECIDING for one in cells):
            why = f"measured at one end of what was searched, not with {setting}"
            return replace(cell, judgement=Judgement(PaperVerdict.NO_ROW, why))
        if cell.measured is None or cell.verdict not in DECIDING:
            return cell
    nearest = min(cells, key=lambda cell: abs(math.log1p((cell.judgement.delta or 0.0) / 100)))
    bounds = [(cell.measured.lo, cell.measured.hi) for cell in cells if cell.measured]
    lows, highs = ([end for end in side if end is not None] for side in zip(*bounds, strict=True))
    assert nearest.measured is not None
    spanned = nearest.measured._replace(
        lo=min(lows) if len(lows) == len(cells) else None,
        hi=max(highs) if len(highs) == len(cells) else None,
    )
    figures = ", ".join(
        f"{setting} ×{cell.measured.value:.3g}" for setting, cell in ends.items() if cell.measured
    )
    judgement = nearest.judgement
    reproduced = PaperVerdict.REPRODUCED
    found = {(c.verdict, c.verdict is reproduced or (c.judgement.delta or 0.0) < 0) for c in cells}
    if len(found) > 1 and judgement.verdict is not PaperVerdict.UNDECIDED:
        judgement = judgement._replace(verdict=PaperVerdict.UNDECIDED, reason=ENDS_DISAGREE)
    reason = "; ".join(filter(None, (judgement.reason, f"at the ends: {figures}")))
    others = tuple(cell.row for cell in cells if cell.row and cell is not nearest)
    doubts = tuple(dict.fromkeys(doubt for cell in cells for doubt in cell.doubts))
    return replace(
        nearest, judgement=judgement._replace(reason=reason), measured=spanned, doubts=doubts,
        other_rows=others,
    )  # fmt: skip


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
        known = PaperCell(line, printed, Judgement(PaperVerdict.NO_ROW), ratio, is_ratio=is_ratio)
        is_relative = is_ratio or metric.measure == "score_kept"
        if is_relative and printed.method in definition.reference and printed.value:
            return replace(known, judgement=Judgement(PaperVerdict.BASELINE, IS_REFERENCE))
        if why := self._cannot(printed, method, metric):
            return replace(known, judgement=Judgement(PaperVerdict.CANNOT, why))
        if printed.task in definition.averages:
            return self._average(known, metric)
        lacking = next(objections.lacking(definition, printed, method, metric), "")
        if is_ratio and ratio is None:
            lacking = lacking or NO_VANILLA
        if not (is_ratio and method.ends):
            return self._measured(known, margin, method, metric, lacking)
        ends = {
            ", ".join(f"{name}={value}" for name, value in end.items()): self._measured(
                known, margin, at_end, metric, lacking
            )
            for end, at_end in zip(method.ends, method.at_ends(), strict=True)
        }
        return _between(ends)

    def _measured(
        self, known: PaperCell, margin: float, method: PaperMethod, metric: PaperMetric,
        lacking: str,
    ) -> PaperCell:  # fmt: skip
        """The cell with the row that matches it best, and its verdict."""
        row, reading, why = self._best(known.line, known.printed, method, metric)
        if reading is None:
            judgement = self._unmeasured(known, row, lacking or why)
            return replace(known, judgement=judgement, row=row)
        judgement = self._judge(known, margin, reading, lacking)
        return replace(known, judgement=judgement, row=row, **reading._asdict())

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
        """The reason why this cell can't be measured at all, or None."""
        reasons = [method.cannot, None if metric.measure else metric.cannot]
        if printed.task not in self.definition.averages:
            reasons.append(self.definition.task(printed.task).cannot)
        if printed.value is None and not self.definition.unsourced:
            reasons.append(f"the paper prints no number ({printed.meaning})")
        if metric.measure in measured.RATIOS and method.models:
            reasons.append(OWN_MODEL)
        return next(filter(None, reasons), None)

    def _best(
        self, line: LineKey, printed: Printed, method: PaperMethod, metric: PaperMetric
    ) -> tuple[Row | None, Reading | None, str]:
        """The row that matches a cell best and its figure, or the reason why there is none."""
        best: tuple[tuple[Any, ...], Row, Reading] | None = None
        failed: Row | None = None
        lacks = ""
        for row in self._candidates(line, printed, method, metric):
            if row["status"] != Status.OK:
                failed = row if measured.would_hold(row, metric.measure or "") else failed
                continue
            of_row = tuple(objections.objections(self.definition, row, printed, method, metric))
            unfused = self.rows.failed_unfused(row) if metric.measure in measured.RATIOS else None
            if unfused and not of_row:
                failed = unfused
                continue
            answer = self.definition.task(printed.task).answer
            reading = measured.figure(row, metric.measure or "", metric.figures, self.rows, answer)
            if reading is None:
                if metric.measure == "score" and row["value"] is not None:
                    lacks = f"the task's metric here, {row['metric']}, has no {printed.metric}"
                continue
            reading = reading._replace(objections=(*of_row, *reading.objections))
            rank = (-len(reading.objections), reading.measured.n or 0, created(row))
            if best is None or rank > best[0]:
                best = (rank, row, reading)
        if best:
            return best[1], best[2], ""
        return failed, None, lacks

    def _candidates(
        self, line: LineKey, printed: Printed, method: PaperMethod, metric: PaperMetric
    ) -> Iterator[Row]:
        """Rows of the cell's method, task, length, settings and size; rows of no printed size are
        candidates for the first size. For costs that do not depend on the task, filled rows of the
        table's other tasks are candidates too."""
        definition = self.definition
        own = definition.task(printed.task).task or ""
        rows = [*self.rows.of(method.method or "", own)]
        if method.any_task and metric.measure in measured.RATIOS:
            for task in sorted(definition.measured_names()[1] - {own}):
                rows += [row for row in self.rows.of(method.method or "", task) if row["filled"]]
        sizes = definition.models_of(method)
        size = definition.size(printed)
        home = not method.models and size in ("", next(iter(sizes), ""))
        strict = printed.length is not None and not definition.any_length
        like = sizes[size].like if size in sizes else ()
        settings = dict(line.settings) if definition.settings else {}
        every = [pattern for size in sizes.values() for pattern in size.like]
        for row in rows:
            if strict and row["length"] != printed.length:
                continue
            if not measured.of_size(row, like) and not (home and not measured.of_size(row, every)):
                continue
            given = json_object(row["method_params"])
            if all(given.get(name) == settings[name] for name in settings):
                yield row

    def _judge(
        self, known: PaperCell, margin: float, reading: Reading, lacking: str = ""
    ) -> Judgement:
        if lacking:
            return Judgement(PaperVerdict.CANNOT, lacking)
        if reading.objections:
            first, *more = reading.objections
            nearest = f"the nearest row: {first}{f' (+{len(more)} more)' if more else ''}"
            if missing := self._missing(known):
                return Judgement(PaperVerdict.CANNOT, f"{missing}; {nearest}")
            return Judgement(PaperVerdict.NO_ROW, nearest)
        printed = known.printed
        assert printed.value is not None
        if known.is_ratio:
            assert known.ratio is not None
            judgement = verdicts.judge_ratio(known.ratio, margin, reading.measured)
        else:
            judgement = verdicts.judge_score(printed.value, printed.margin, reading.measured)
        if not reading.doubts:
            return judgement
        return Judgement(PaperVerdict.UNDECIDED, "; ".join(reading.doubts), judgement.delta)

    def _average(self, known: PaperCell, metric: PaperMetric) -> PaperCell:
        """The mean over tasks, from the cells of the tasks."""
        line, printed = known.line, known.printed
        names = self.definition.averages[printed.task]
        if metric.measure != "score":
            why = "a mean over tasks is formed of scores only"
            return replace(known, judgement=Judgement(PaperVerdict.CANNOT, why))
        method = self.definition.method(printed.method)
        lacking = next(objections.lacking(self.definition, printed, method, metric), "")
        singles = [replace(printed, task=name, length=None) for name in names]
        score = PaperMetric("score")
        found = [self._best(line, single, method, score)[1] for single in singles]
        parts = [reading for reading in found if reading]
        if len(parts) < len(names):
            some = f"{len(parts)} of {len(names)} tasks are measured" if parts else ""
            return replace(known, judgement=self._unmeasured(known, None, lacking, some))
        against = tuple(dict.fromkeys(o for part in parts for o in part.objections))
        at_chance = any(part.at_chance for part in parts)
        average = Reading(mean([part.measured for part in parts]), against, (), at_chance)
        judgement = self._judge(known, 0.0, average, lacking)
        return replace(known, judgement=judgement, **average._asdict())

    def _unmeasured(
        self, known: PaperCell, row: Row | None, lacking: str, some: str = ""
    ) -> Judgement:
        """The cell if no row has its figure: `lacking` is data that no row can have; `row` failed
        or was skipped, and is the cell's or unfused vanilla's; `some` is the available part of a
        mean."""
        if row is not None and not lacking:
            first = (row["status_detail"] or "no reason given").splitlines()[0]
            if row["status"] == Status.SKIPPED:
                return Judgement(PaperVerdict.SKIPPED, first)
            if row["method"] == measured.UNFUSED:
                return Judgement(PaperVerdict.UNDECIDED, f"{UNFUSED_FAILED} {row['status']}")
            return Judgement(PaperVerdict.UNDECIDED, f"{row['status']}: {first}")
        if why := lacking or self._missing(known):
            return Judgement(PaperVerdict.CANNOT, why)
        return Judgement(
            PaperVerdict.NO_ROW, some or ("" if known.is_ratio else self.definition.needs)
        )

    def _missing(self, known: PaperCell) -> str:
        """The resources for a row of the cell that aren't available here."""
        method = self.definition.method(known.printed.method)
        return "" if known.is_ratio else method.missing or ""

    def related(self) -> list[Row]:
        """All rows of the table's methods and tasks, newest first."""
        methods, tasks = self.definition.measured_names()
        rows = [row for m in sorted(methods) for t in sorted(tasks) for row in self.rows.of(m, t)]
        return sorted(rows, key=created, reverse=True)
