"""What a budget leaves out: by estimates before a sweep, by what has ended while it runs. What is
left out at the end becomes rows that say so. No result is looked at, only time and memory."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cell import PLANS, Cell, load
from bench.errors import RequestError
from bench.spans import span

if TYPE_CHECKING:
    from bench.plan import Planned
    from bench.record import Record

UNITS = {"h": 3600, "m": 60, "s": 1}
ROOM = ("oom_host", "oom_device", "timeout")
"""How a cell ends for which there wasn't memory or time enough; a longer one needs more."""


def seconds(text: str | None) -> float | None:
    """Seconds of a budget such as 30m, 2h, 1h30m or 90s. Raises RequestError."""
    if text is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", str(text))
    if not parts or "".join(a + b for a, b in parts) != str(text):
        raise RequestError(f"budget={text} is not accepted: it is such as 30m, 2h, 1h30m or 90s")
    found = sum(float(number) * UNITS[unit] for number, unit in parts)
    if found <= 0:
        raise RequestError(f"budget={text} is not accepted: it must be more than nothing")
    return found


def ordered(found: list[Planned], budget_s: float | None) -> list[Planned]:
    """As given; with a budget the coarse cells of all methods before the fine ones of any: first
    few rows and pairs, then the first seed, then what is quick. The methods of one point stand
    together, so that what is left out is left out for all of them."""
    if budget_s is None:
        return found
    points: dict[tuple[str, ...], list[Planned]] = {}
    for planned in found:
        other = tuple(word for word in planned.words if not word.startswith("method"))
        points.setdefault(other, []).append(planned)

    def fineness(group: list[Planned]) -> tuple[Any, ...]:
        request = group[0].request
        measured = PLANS.get(request["measure"], PLANS["quick"])
        cost = sum(planned.seconds for planned in group) / len(group)
        return (request["n"] or math.inf, measured.pairs, measured.budget_s, request["seed"], cost,
                request["length"])  # fmt: skip

    in_order = [p for group in sorted(points.values(), key=fineness) for p in group]
    spent, result = 0.0, []
    for planned in in_order:
        if planned.runs:
            if spent and spent + planned.seconds > budget_s:
                planned = replace(planned, state="over budget")
            else:
                spent += planned.seconds
        result.append(planned)
    return result


def left_out(record: Record, content: dict[str, Any], index: int) -> str | None:
    """Why a cell that is next isn't begun: a shorter one of the same words didn't fit, or it would
    end too late, its estimate corrected by how long the cells of its method took. The first cell
    always begins: a budget too small for any would be no budget but an error."""
    if not index or not content["until"]:
        return None
    cells = content["cells"]
    words, length = _apart(cells[index]["words"])
    slower: list[tuple[bool, int, float]] = []
    for i, cell in enumerate(cells[:index]):
        note = record.read(i)
        others, shorter = _apart(cell["words"])
        if note.get("state") != "ended":
            continue
        if note["status"] in ROOM and others == words and shorter < length:
            return f"at length={shorter} it ended as {note['status']}"
        if note["status"] == "ok" and cell["seconds"] > 0:
            alike = _method(others) == _method(words)
            slower.append((alike, shorter, note["seconds"] / cell["seconds"]))
    needed = cells[index]["seconds"] * (max(slower)[2] if slower else 1.0)
    left = content["until"] - time.time()
    if needed > left:
        return f"it would take about {span(needed)}, and {span(max(0.0, left))} are left"
    return None


def _apart(words: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """A cell's words without the length, and the length; 0 where that is no word of it."""
    rest = tuple(word for word in words if not word.startswith("length="))
    length = next((int(word[7:]) for word in words if word.startswith("length=")), 0)
    return rest, length


def _method(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("method")]


def store_rows(
    unmeasured: Sequence[tuple[Planned, str]],
    results: Path,
    budget: str,
    command: str,
    here: bool,
) -> int:
    """Rows `skipped` for the cells that a budget left out, each with its reason, but for cells of
    which there is a row; gives their number. `here`: this machine would have run them."""
    from bench import host, runner
    from bench.store import Store

    store, known = Store(results), {}
    rows = []
    for planned, why in unmeasured:
        if planned.cell is None:
            continue
        request = {**planned.request, "threads": planned.cell.threads}
        shape = json.dumps([request[n] for n in ("task", "data", "n", "length", "seed")])
        if shape not in known:
            known[shape] = load(request)
        cell = Cell.with_rows(request, known[shape].split, known[shape].sha256)
        if store.find(cell.key):
            continue
        detail = f"not measured for the budget of {budget}: {why}"
        row = runner.ended(cell, "skipped", detail, status_stage="plan", command=command)
        rows.append(host.fingerprint(cell.threads, cell.device["kind"]) | row if here else row)
    store.append(rows)
    return len(rows)
