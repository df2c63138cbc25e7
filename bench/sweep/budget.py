"""What a time budget leaves out of a sweep: by estimates before it starts, and while it runs by the
cells that have ended. Cells that are left out become rows that say so. The choice depends on times
and memory, never on results."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.errors import RequestError
from bench.request.schema import MEASURES
from bench.status import Status
from bench.sweep.planned import Plan, Planned, PlanState
from bench.sweep.state import CellOutcome, Record, has_ended
from bench.units import span

UNITS = {"h": 3600, "m": 60, "s": 1}
LIMITS = (Status.OOM_HOST, Status.OOM_DEVICE, Status.TIMEOUT)
"""Statuses of a cell that ran out of memory or time, as it would at a greater length."""


def seconds(text: str | None) -> float | None:
    """Seconds of `time=`, such as 30m, 2h, 1h30m or 90s. Raises RequestError."""
    if text is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise RequestError(f"time={text} is not accepted: it is such as 30m, 2h, 1h30m or 90s")
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise RequestError(f"time={text} is not accepted: it must be more than 0")
    return total


def ordered(cells: list[Planned], budget_s: float | None) -> list[Planned]:
    """The cells as given; with a budget, the coarse cells of all methods before the fine ones of
    any: first few rows and pairs, then the first seed, then what is quick. The methods of one point
    stay together, so that what is left out is left out for all of them."""
    if budget_s is None:
        return cells
    points: dict[tuple[str, ...], list[Planned]] = {}
    for planned in cells:
        point = tuple(o for o in planned.overrides if not o.startswith("method"))
        points.setdefault(point, []).append(planned)

    def fineness(group: list[Planned]) -> tuple[Any, ...]:
        request = group[0].request
        measure = MEASURES.get(request["measure"], MEASURES["quick"])
        cost = sum(planned.seconds for planned in group) / len(group)
        return (request["n"] or math.inf, measure.pairs, measure.budget_s, request["seed"], cost,
                request["length"])  # fmt: skip

    spent, result = 0.0, []
    for planned in (each for group in sorted(points.values(), key=fineness) for each in group):
        if planned.runs:
            if spent and spent + planned.seconds > budget_s:
                planned = replace(planned, state=PlanState.OVER_BUDGET)
            else:
                spent += planned.seconds
        result.append(planned)
    return result


def reason_to_skip(record: Record, content: dict[str, Any], index: int) -> str | None:
    """Why a cell isn't started when its turn comes: a shorter one of the same overrides ran out of
    memory or time, or it would end too late by its estimate, corrected by the times of cells that
    have ended, those of its method first. The first cell always starts: a budget that is too small
    for any cell is an error in the budget."""
    if not index or not content["until"]:
        return None
    cells = content["cells"]
    overrides, length = _split_length(cells[index]["overrides"])
    slowdowns: list[tuple[bool, int, float]] = []
    for i, cell in enumerate(cells[:index]):
        note = record.read_note(i)
        others, shorter = _split_length(cell["overrides"])
        if not has_ended(note):
            continue
        if note["status"] in LIMITS and others == overrides and shorter < length:
            return f"at length={shorter} it ended as {note['status']}"
        if note["status"] == Status.OK and cell["seconds"] > 0:
            same_method = _method(others) == _method(overrides)
            slowdowns.append((same_method, shorter, note["seconds"] / cell["seconds"]))
    needed = cells[index]["seconds"] * (max(slowdowns)[2] if slowdowns else 1.0)
    left = content["until"] - time.time()
    if needed > left:
        return f"it would take about {span(needed)}, and {span(max(0.0, left))} are left"
    return None


def _split_length(overrides: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """A cell's overrides without the length, and the length; 0 where it isn't one of them."""
    rest = tuple(override for override in overrides if not override.startswith("length="))
    lengths = (override.removeprefix("length=") for override in overrides if override not in rest)
    return rest, int(next(lengths, 0))


def _method(overrides: Sequence[str]) -> list[str]:
    return [override for override in overrides if override.startswith("method")]


def left_out(plan: Plan, outcomes: Sequence[CellOutcome]) -> list[tuple[Planned, str]]:
    """The cells that the budget left unmeasured, each with the reason. `outcomes` are those of
    `plan.open`, or empty when nothing was started."""
    considered = plan.open if outcomes else []
    too_long = [
        (planned, f"it would take about {span(planned.seconds)}")
        for planned in plan.of(PlanState.OVER_BUDGET)
        if planned not in considered
    ]
    ended = zip(considered, outcomes, strict=True)
    return too_long + [
        (p, each.reason) for p, each in ended if each.status == PlanState.OVER_BUDGET
    ]


def store_rows(plan: Plan, cells: Sequence[tuple[Planned, str]], here: bool) -> int:
    """Stores rows `skipped` for cells that the budget left out, each with its reason, except where
    the store has a row of the cell. `here`: this machine would have run them. Returns the number of
    rows. Raises RequestError and StoreError."""
    from bench.execution import runner
    from bench.host import host
    from bench.rows.store import Store

    store, hashed = Store(plan.results), {}
    rows = []
    for planned, reason in cells:
        cell = planned.cell
        if cell is None:
            continue
        data = json.dumps([cell.task, cell.data, cell.n, cell.length, cell.seed])
        if data not in hashed:
            hashed[data] = cell.hashed().data
        cell = replace(cell, data=hashed[data])
        if store.find(cell.key):
            continue
        detail = f"not measured for the budget of {plan.budget}: {reason}"
        row = runner.unmeasured_row(
            cell,
            Status.SKIPPED,
            detail,
            status_stage="plan",
            experiment=planned.request["experiment"],
        )
        rows.append(host.fingerprint(cell.threads, cell.device["kind"]) | row if here else row)
    store.append(rows)
    return len(rows)
