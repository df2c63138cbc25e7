"""A sweep in words: its plan in a line before it, its rows and what went wrong after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench import launchers
from bench.plan import STATES, Plan, Planned
from bench.record import Note, ended
from bench.spans import cells, span

REASON_LETTERS = 160
MOST_SHOWN = 60
"""Rows that are listed at the end; bench results lists more."""


@dataclass(frozen=True)
class Ended:
    """How one cell of a sweep ended: exit code, status, the first line of the reason, the row."""

    words: str
    code: int
    status: str
    reason: str = ""
    row_id: str | None = None
    figures: str = ""
    seconds: float = 0.0


def outcome(planned: Planned, note: Note) -> Ended:
    if not ended(note):
        return Ended(planned.title, 1, "not run", "no word of it")
    return Ended(**{name: note[name] for name in Ended.__dataclass_fields__})


def heading(made: Plan) -> str:
    """The plan in a line."""
    counts = [cells(len(made.cells))]
    counts += [f"{len(made.of(s))} {s}" for s in STATES if made.of(s)]
    now = [planned for planned in made.open if planned.runs]
    seconds = sum(planned.seconds for planned in now) / max(1, parallel(made))
    return " · ".join([*counts, f"about {span(seconds)}"] if now else counts)


def say(made: Plan, results: Sequence[Ended]) -> None:
    """The rows of a sweep that has ended, and its summary."""
    ids = [each.row_id for each in results if each.row_id]
    if 0 < len(ids) <= MOST_SHOWN and sys.stdout.isatty():
        from bench import listing
        from bench.store import LIGHT, Store

        rows = Store(made.results).rows(LIGHT, {"row_id": ids}).to_pylist()
        print()
        listing.show(sorted(rows, key=lambda row: ids.index(row["row_id"])))
    print(f"\n{summary(made, results)}")


def summary(made: Plan, results: Sequence[Ended]) -> str:
    """How many cells are done, and for each other one its words, its status and why."""
    before = [p for p in made.cells if p.row_id]
    bad_before = [p for p in before if p.state == "done" and p.reason]
    failed = [each for each in results if each.code]
    failed += [Ended(p.title, 2, "refused", p.reason) for p in made.of("refused")]
    failed += [Ended(p.title, 1, "before", p.reason) for p in bad_before]
    unmeasured = left_out(made, results)
    done = len(made.cells) - len(failed) - len(unmeasured)
    head = f"{cells(len(made.cells))}: {done} done, {len(failed)} failed"
    if before:
        head += f" ({len(before)} of them before)"
    if unmeasured:
        head += f", {len(unmeasured)} not measured for the budget"
    lines = [head]
    for each in failed:
        reason = next(iter(each.reason.splitlines()), "no reason given")
        lines.append(f"  {each.words}: {each.status}: {reason[:REASON_LETTERS]}")
    lines += [f"  {planned.title}: over budget: {why}" for planned, why in unmeasured]
    return "\n".join(lines)


def left_out(made: Plan, results: Sequence[Ended]) -> list[tuple[Planned, str]]:
    """The cells that a budget left unmeasured, each with the reason."""
    asked = made.open if results else []
    found = [
        (planned, f"it would take about {span(planned.seconds)}")
        for planned in made.of("over budget")
        if planned not in asked
    ]
    late = zip(asked, results, strict=True)
    return found + [(p, each.reason) for p, each in late if each.status == "over budget"]


def figures(row: dict[str, Any]) -> str:
    """A row in a few words."""
    parts = []
    if row.get("value") is not None:
        parts.append(f"{row['metric']} {row['value']:.1f}")
    if row.get("ratio") is not None:
        parts.append(f"×{row['ratio']:.3f} {row['verdict']}")
    if row.get("mem_ratio") is not None:
        parts.append(f"memory ×{row['mem_ratio']:.2f}")
    if row.get("max_length_fit") is not None:
        parts.append(f"fits {row['max_length_fit']:,} tokens")
    return " · ".join(parts)


def parallel(made: Plan) -> int:
    """How many cells a plan runs at a time."""
    launcher = made.grid.hydra["launcher"]
    if made.engine == "joblib":
        n = int(launcher["n_jobs"])
        return n if n > 0 else len(os.sched_getaffinity(0))
    if made.engine == launchers.SLURM:
        return min(int(launcher["array_parallelism"]), len(made.open))
    return 1
