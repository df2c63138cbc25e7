"""Times of cells that differ only in their method, measured in turns in the same processes
(`bench.measure.turns`): the time of each new token, or of the first one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.execution import spawn
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Outcome
from bench.host import gpu, host
from bench.request.cell import Cell
from bench.rows.columns import COLUMNS
from bench.rows.comparison import pooled
from bench.status import Status

Columns = dict[str, Any]
VANILLA = "-1"


def time(run: CellRun, cells: Sequence[Cell]) -> tuple[Outcome, dict[str, Columns]]:
    """The outcome of the last process, and the columns of each cell's row by its key; cells whose
    method failed have none. If several caches don't fit in memory, they are timed in two halves."""
    cell, plan, since, wall_ns = cells[0], cells[0].plan, spawn.counters(), 0
    parts: list[Columns] = []
    for process in range(plan.processes):
        outcome = run.child(
            "measure.turns", cells=[cell.to_json() for cell in cells], counts=not process,
            rounds=-(-plan.pairs // plan.processes),
        )  # fmt: skip
        wall_ns += outcome.wall_ns
        if outcome.status in (Status.OOM_HOST, Status.OOM_DEVICE) and len(cells) > 1:
            halves = [time(run, half) for half in (cells[::2], cells[1::2])]
            return halves[-1][0], halves[0][1] | halves[1][1]
        if outcome.status != Status.OK:
            return outcome, {}
        parts.append(outcome.result)
    facts = host.fingerprint(cell.threads, cell.device["kind"], since, spawn.counters())
    on_gpu = [part["columns"] for part in parts]
    shared = {
        **facts, **on_gpu[0], **gpu.throttled(on_gpu),
        "wall_total_ns": wall_ns // len(cells), "tokens_out": cell.new_tokens,
    }  # fmt: skip
    name = "tpot" if plan.tokens_alone else "lat"
    return outcome, {
        cell.key: shared | _columns(cell, name, str(number), parts)
        for number, cell in enumerate(cells)
        if all(str(number) in part["timed"] for part in parts)
    }


def _columns(cell: Cell, name: str, number: str, parts: Sequence[Columns]) -> Columns:
    counts: dict[str, Columns] = parts[0]["counts"]
    base = counts[VANILLA]
    columns: Columns = {name: pooled([part["timed"][number] for part in parts])}
    if cell.is_baseline:
        return columns | base
    return columns | counts[number] | of_base(base)


def of_base(columns: Columns) -> Columns:
    """The columns of a row that are vanilla's."""
    found = {f"base_{name}": value for name, value in columns.items()}
    return {name: value for name, value in found.items() if name in COLUMNS}
