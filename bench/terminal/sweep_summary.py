"""A sweep as text: its plan in one line before it, its rows and errors after it. After each run:
the next commands that a user may need."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.request.schema import BASELINE
from bench.status import Status
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
    """The number of finished cells, and for each other cell its overrides, status and reason."""
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


def after_row(row: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """After one cell: a sweep of the same request, its comparison, the page; empty if the cell
    failed, since its error must be solved first."""
    if row["status"] != Status.OK:
        return ""
    left_out = ("method=", "engine=", "length=", "force=", "experiment=")
    words = [word for word in overrides if not word.startswith(left_out)]
    if row["method"] == BASELINE:
        other = shlex.join(["bench", "run", "method=NAME", f"length={row['length']}", *words])
        return f"next: bench ls methods; then {other}"
    lengths = f"{row['length']},{2 * row['length']}"
    methods = f"method={BASELINE},{row['method']}"
    sweep = shlex.join(["bench", "run", "-m", methods, f"length={lengths}", *words])
    return f"next: {sweep}; then {_after(row['method'], words)}"


def after_sweep(plan: Plan, outcomes: Sequence[CellOutcome], overrides: Sequence[str]) -> str:
    """The comparison and the page of the sweep's rows; empty if there are none."""
    ended = zip(plan.open, outcomes, strict=False)
    cells = [p.cell for p in plan.cells if p.row_id] + [p.cell for p, one in ended if not one.code]
    methods = [cell.method["name"] for cell in cells if cell]
    others = [method for method in methods if method != BASELINE]
    return f"next: {_after(others[0] if others else BASELINE, overrides)}" if methods else ""


def _after(method: str, overrides: Sequence[str]) -> str:
    """The comparison with vanilla, unless the method is vanilla, and the leaderboard."""
    results = [word for word in overrides if word.startswith("results=")]
    commands = [["bench", "leaderboard", *results]]
    if method != BASELINE:
        both = [f"method={BASELINE}", f"method={method}"]
        commands.insert(0, ["bench", "compare", *both, *results])
    return "; ".join(map(shlex.join, commands))
