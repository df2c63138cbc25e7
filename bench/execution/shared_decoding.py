"""Times of each new token of cells that are equal in all but their method, measured in turns in the
same processes (`bench.measure.shared_decoding`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.execution import spawn
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Outcome
from bench.host import host
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows.comparison import pooled
from bench.status import Status

Columns = dict[str, Any]
VANILLA = "-1"
BASE = ("kv_bytes_held_prefill", "kv_bytes_held", "kv_bytes_read_per_token")
RATIOS = {"kv_held_ratio": "kv_bytes_held", "kv_read_ratio": "kv_bytes_read_per_token"}


def time(run: CellRun, cells: Sequence[Cell]) -> tuple[Outcome, dict[str, Columns]]:
    """How the last process ended, and the columns of each cell's row by its key; cells whose method
    failed have none. Where several caches don't fit in memory, they are timed in two halves."""
    plan, since, wall_ns = cells[0].plan, spawn.counters(), 0
    parts: list[Columns] = []
    for process in range(plan.processes):
        outcome = run.child(
            "measure.shared_decoding", cells=[cell.to_json() for cell in cells],
            rounds=-(-plan.pairs // plan.processes), counts=not process,
        )  # fmt: skip
        wall_ns += outcome.wall_ns
        if outcome.status in (Status.OOM_HOST, Status.OOM_DEVICE) and len(cells) > 1:
            halves = [time(run, half) for half in (cells[::2], cells[1::2])]
            return halves[-1][0], halves[0][1] | halves[1][1]
        if outcome.status != Status.OK:
            return outcome, {}
        parts.append(outcome.result)
    facts = host.fingerprint(cells[0].threads, cells[0].device["kind"], since, spawn.counters())
    shared = {**facts, "wall_total_ns": wall_ns // len(cells), "tokens_out": cells[0].new_tokens}
    return outcome, {
        cell.key: shared | _columns(cell, str(number), parts)
        for number, cell in enumerate(cells)
        if all(str(number) in part["timed"] for part in parts)
    }


def _columns(cell: Cell, number: str, parts: Sequence[Columns]) -> Columns:
    counts = parts[0]["counts"]
    base = counts[VANILLA]
    columns: Columns = {"tpot": pooled([part["timed"][number] for part in parts])}
    if cell.method["name"] == BASELINE:
        return columns | base
    own = counts[number]
    columns |= own | {f"base_{name}": base[name] for name in BASE}
    for ratio, name in RATIOS.items():
        columns[ratio] = own[name] / base[name] if base[name] else None
    return columns
