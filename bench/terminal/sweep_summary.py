"""A sweep as text: its plan in one line before it, its rows and what went wrong after it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.sweep.log import CellOutcome
from bench.sweep.plan import Plan, PlanState
from bench.sweep.sweep import left_out
from bench.units import counted, span

REASON_LETTERS = 160
MAX_ROWS = 60
"""Rows that are listed at the end; bench results lists more."""


def heading(plan: Plan) -> str:
    """The plan in one line."""
    parts = [counted(len(plan.cells), "cell")]
    parts += [f"{len(plan.of(state))} {state}" for state in PlanState if plan.of(state)]
    if any(planned.runs for planned in plan.cells):
        parts.append(f"about {span(plan.seconds)}")
    return " · ".join(parts)


def sharing(plan: Plan) -> list[str]:
    """A line for each group of cells that answer together."""
    return [
        f"{counted(len(group), 'cell')} from {group[0].title} on read each prompt once: about "
        f"{span(sum(p.seconds for p in group))}, alone {span(sum(p.alone_s for p in group))}"
        for group in plan.groups
    ]


def show(plan: Plan, outcomes: Sequence[CellOutcome]) -> None:
    """Prints the rows of a sweep that has ended, at a terminal, and its summary."""
    ids = [outcome.row_id for outcome in outcomes if outcome.row_id]
    if 0 < len(ids) <= MAX_ROWS and sys.stdout.isatty():
        from bench.rows.store import LIGHT, Store
        from bench.terminal import rows_table

        rows = Store(plan.results).rows(LIGHT, {"row_id": ids}).to_pylist()
        print()
        rows_table.show(sorted(rows, key=lambda row: ids.index(row["row_id"])))
    print(f"\n{summary(plan, outcomes)}")


def summary(plan: Plan, outcomes: Sequence[CellOutcome]) -> str:
    """How many cells are done, and for each other one its overrides, its status and the reason."""
    before = [planned for planned in plan.cells if planned.row_id]
    ended = zip(plan.open, outcomes, strict=False)
    failed = [(p.title, outcome.status, outcome.reason) for p, outcome in ended if outcome.code]
    failed += [(p.title, p.state, p.reason) for p in plan.of(PlanState.REFUSED)]
    failed += [(p.title, "before", p.reason) for p in plan.of(PlanState.DONE) if p.reason]
    unmeasured = left_out(plan, outcomes)
    n_done = len(plan.cells) - len(failed) - len(unmeasured)
    head = f"{counted(len(plan.cells), 'cell')}: {n_done} done, {len(failed)} failed"
    if before:
        head += f" ({len(before)} of them before)"
    if unmeasured:
        head += f", {len(unmeasured)} not measured for the budget"
    lines = [head]
    for title, status, reason in failed:
        reason = reason.partition("\n")[0][:REASON_LETTERS] or "no reason given"
        lines.append(f"  {title}: {status}: {reason}")
    lines += [f"  {planned.title}: over budget: {reason}" for planned, reason in unmeasured]
    return "\n".join(lines)
