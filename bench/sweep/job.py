"""One cell of a sweep, wherever the launcher put it: in this process, in a worker, on a node of a
cluster. How it goes is written to the sweep's record."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.host.job import JobPreempted, Origin
from bench.request.cell import Cell
from bench.rows.engine import engine_only, longest_input
from bench.rows.shards import StoreError
from bench.status import Status
from bench.sweep.log import CellOutcome, EventStream, Note, Record, has_ended, key_figures
from bench.sweep.plan import PlanState
from bench.units import span

UNTIL_KILLED_S = 600.0

LIMITS = (Status.OOM_HOST, Status.OOM_DEVICE, Status.TIMEOUT)
"""Statuses of a cell that ran out of memory or time, as it would at a greater length."""

Listener = Callable[[int, Note], None]
"""Called with the number of a cell and its new note."""


@dataclass(frozen=True)
class CellJob:
    """Runs cells of the sweep with this folder, in any process: pickle needs no more. Returns the
    exit code of the cell."""

    folder: Path
    listener: Listener | None = None
    timed: dict[str, Any] = field(default_factory=dict)
    """Columns of cells that have been timed together and not run yet, by their key."""

    def __call__(self, index: int, request: dict[str, Any], together: Sequence[int] = ()) -> int:
        """`together`: further cells whose prompts are answered at once with this cell's, before it
        runs."""
        record = Record(self.folder)
        content = record.content()
        origin = Origin(record.id, content["launcher"], content["workers"])
        where = origin.columns()
        process = {"since": time.time(), "pid": os.getpid()}
        process |= {name: where[name] for name in ("slurm_job_id", "node") if where[name]}
        if reason := reason_to_skip(record, content, index):
            skipped = CellOutcome(0, PlanState.OVER_BUDGET, reason)
            return end(record, index, skipped, process, self.listener)
        overrides = content["cells"][index]["overrides"]
        record.events.write("cell_started", cell=index, overrides=overrides)

        def progress(stage: str, done: int, total: int, note: str = "") -> None:
            record.events.stage(index, stage, done, total)
            running = {**process, "state": "running", "stage": [stage, done, total]}
            _write(record, index, running, self.listener)

        progress("starts", 0, 0)
        began = time.monotonic()
        try:
            others = [Cell.from_json(content["cells"][i]["cell"]) for i in together]
            outcome = _run(request, progress, origin, others, self.timed)
        except JobPreempted:
            progress("is ended", 0, 0)
            # A job that returns would tell Slurm that nothing is left to do.
            time.sleep(UNTIL_KILLED_S)
            return 1
        outcome = replace(outcome, seconds=time.monotonic() - began)
        return end(record, index, outcome, process, self.listener)

    def checkpoint(self, index: int, request: dict[str, Any]) -> Any:
        """Called by submitit at the job's time limit: the same job again, which continues."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, index, request)


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


def end(
    record: Record, index: int, outcome: CellOutcome, note: Note, listener: Listener | None = None
) -> int:
    """Writes how a cell ended, with what its note has of its process. Returns its exit code."""
    write_end(record.events, index, outcome)
    _write(record, index, {**note, "state": "ended", **asdict(outcome)}, listener)
    return outcome.code


def write_end(events: EventStream, index: int, outcome: CellOutcome) -> None:
    """Writes the one event with which a cell ends."""
    event = "cell_refused" if outcome.code == 2 else "cell_failed" if outcome.code else "row"
    if outcome.status == PlanState.OVER_BUDGET:
        event = "cell_skipped"
    known = {"status": outcome.status, "reason": outcome.reason, "row_id": outcome.row_id}
    known = {name: value for name, value in known.items() if value}
    events.write(event, cell=index, **known, seconds=round(outcome.seconds, 3), **outcome.measured)


@contextlib.contextmanager
def one_cell(events: EventStream, overrides: Sequence[str], **content: Any) -> Iterator[None]:
    """The events of a command that runs one cell; what it writes at the end is the caller's."""
    with events.around(cells=1, done=0, to_run=1, **content):
        events.write("cell_started", cell=0, overrides=overrides)
        try:
            yield
        except Exception as error:
            refused = isinstance(error, RequestError)
            status = PlanState.REFUSED if refused else Status.ERROR
            write_end(events, 0, CellOutcome(2 if refused else 1, status, str(error)))
            raise


def run_together(
    folder: Path,
    numbers: Sequence[int],
    requests: Mapping[int, dict[str, Any]] | Sequence[dict[str, Any]],
    listener: Listener | None = None,
) -> None:
    """Runs cells of the sweep with this folder one after the other; several have their prompts
    answered at once."""
    record, run_cell = Record(folder), CellJob(folder, listener)
    for place, i in enumerate(numbers):
        # Where the sweep's folder is removed or turns read-only, none of the rest begins.
        if problem := record.problem():
            end(record, i, CellOutcome(1, Status.ERROR, problem), {}, listener)
        else:
            run_cell(i, requests[i], numbers[1:] if not place else ())


def _run(
    request: dict[str, Any],
    progress: Callable[..., None],
    origin: Origin,
    others: Sequence[Cell],
    timed: dict[str, Any],
) -> CellOutcome:
    """Runs one request, once the prompts of it and of `others` are answered, or their tokens are
    `timed`. All errors become outcomes, so that the other cells of the sweep run."""
    from bench.execution import runner, shared_prefill

    results = Path(request["results"]).expanduser().resolve()
    try:
        cell = Cell.of(request)
        if others:
            cells = [
                cell,
                *(replace(cell, method=o.method, code_sha256=o.code_sha256) for o in others),
            ]
            timed |= shared_prefill.answer(cells, results, request["deadline_s"], progress)
        row = runner.run(
            cell, results, force=request["force"], deadline_s=request["deadline_s"],
            progress=progress, experiment=request["experiment"], origin=origin,
            share_prefill=request["share_prefill"], timed=timed.pop(cell.key, None),
        )  # fmt: skip
    except RequestError as error:
        return CellOutcome(2, PlanState.REFUSED, str(error))
    except StoreError as error:
        return CellOutcome(1, "not stored", str(error))
    except JobPreempted:
        raise
    except Exception as error:
        # Matched by name, as submitit is an extra: a job's last time limit, after all its requeues.
        if type(error).__name__ == "UncompletedJobError":
            detail = f"the job's time limit: {error}"
            lost = runner.store_unmeasured(
                cell, results, Status.TIMEOUT, detail, experiment=request["experiment"],
                **origin.columns(),
            )  # fmt: skip
            return CellOutcome(1, Status.TIMEOUT, detail, lost["row_id"])
        return CellOutcome(1, Status.ERROR, f"{type(error).__name__}: {error}")
    return outcome_of(row)


def outcome_of(row: Mapping[str, Any]) -> CellOutcome:
    """How the cell of a row ended."""
    return CellOutcome(
        Status(row["status"]).exit_code, row["status"], row.get("status_detail") or "",
        row["row_id"], figures(row), measured=key_figures(row),
    )  # fmt: skip


def figures(row: Mapping[str, Any]) -> str:
    """The main figures of a row in one line."""
    parts = []
    if row.get("value") is not None:
        parts.append(f"{row['metric']} {row['value']:.1f}")
    if row.get("lat_ratio") is not None:
        parts.append(f"×{row['lat_ratio']:.3f} {row['lat_verdict']} {engine_only(row)}".rstrip())
    if row.get("mem_ratio") is not None:
        parts.append(f"memory ×{row['mem_ratio']:.2f}")
    if longest := longest_input(row):
        parts.append(f"fits {longest}")
    return " · ".join(parts)


def _write(record: Record, index: int, note: Note, listener: Listener | None) -> None:
    # A full disk must not cost the row, for which there may still be room.
    with contextlib.suppress(OSError):
        record.write_note(index, **note)
    if listener:
        listener(index, {"at": time.time(), **note})
