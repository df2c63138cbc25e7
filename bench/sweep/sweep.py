"""`bench run -m`: the open cells of a plan, in this process, in workers (joblib) or in Slurm jobs
(submitit), one row each.

The plan is made before anything starts, so that a wrong request is refused at once and a finished
cell costs nothing. Each cell writes its progress to the sweep's record, wherever it runs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bench.errors import RequestError
from bench.execution.runner import check_writable
from bench.request.cell import Cell
from bench.rows.store import LIGHT, Store
from bench.status import Status
from bench.sweep import job, launchers, slurm
from bench.sweep.log import CellOutcome, Note, Record, has_ended
from bench.sweep.plan import Plan, Planned, PlanState
from bench.units import counted, span

MAX_ARRAY = 1000
"""Jobs of one array: one less than Slurm's own default of MaxArraySize."""
WATCH_S = {launchers.JOBLIB: 1.0, launchers.SLURM: 3.0}
"""Launchers whose cells run in other processes → seconds between two looks at their notes."""


class Display(AbstractContextManager[Any], Protocol):
    """What shows a sweep while it runs."""

    def update(self, index: int, note: Note) -> None:
        """Shows the new note of a cell."""

    def refresh(self) -> None:
        """Shows the time that has passed."""


@dataclass
class _Sweep:
    """A sweep that runs. `notes` are the last ones seen."""

    plan: Plan
    record: Record
    display: Display
    notes: dict[int, Note] = field(default_factory=dict)

    def update(self, index: int, note: Note) -> None:
        self.notes[index] = note
        self.display.update(index, note)

    def outcomes(self) -> list[CellOutcome]:
        """How each cell ended. Where the sweep's folder was removed or turned read-only, rows
        count, and a cell without one has failed for that reason."""
        found = [self.record.outcome(i, self.notes.get(i)) for i in range(len(self.plan.open))]
        if not (problem := self.record.problem()):
            return found
        store = Store(self.plan.results)
        ids = set(store.rows(["row_id"])["row_id"].to_pylist())
        own = store.rows(LIGHT, {"run_id": self.record.id}).to_pylist()
        rows = {Cell.from_json(row["cell"]).plan_key: row for row in own}
        for i, (each, planned) in enumerate(zip(found, self.plan.open, strict=True)):
            assert planned.cell is not None
            if row := rows.get(planned.cell.plan_key):
                found[i] = replace(job.outcome_of(row), seconds=each.seconds)
            elif each.row_id not in ids and each.status != PlanState.OVER_BUDGET:
                gone = "its row is gone: " if each.row_id else ""
                found[i] = CellOutcome(1, Status.ERROR, f"{gone}{problem}", seconds=each.seconds)
        return found


def run(plan: Plan, command: str, display: Display, name: str = "") -> list[CellOutcome]:
    """Run the open cells of a plan; one that fails doesn't stop the rest. `name` is the sweep's id.
    Raises RequestError."""
    check_writable(plan.results)
    sweep = _Sweep(plan, Record.begin(plan, command, name), display)
    try:
        with display:
            _launch(sweep)
    except KeyboardInterrupt:
        n_ended = sum(has_ended(sweep.record.read_note(i)) for i in range(len(plan.open)))
        print(f"\n{n_ended} of {counted(len(plan.open), 'cell')} ended", file=sys.stderr)
        if plan.engine == launchers.SLURM:
            print(
                "its jobs stay in the queue: bench status shows them, "
                f"bench status --cancel {sweep.record.id} takes them out", file=sys.stderr,
            )  # fmt: skip
        raise
    return sweep.outcomes()


def exit_code(plan: Plan, outcomes: Sequence[CellOutcome]) -> int:
    """2 when a request was refused, 1 when a run failed, now or before, else 0."""
    refused = 2 if plan.of(PlanState.REFUSED) else 0
    failed_before = any(planned.reason for planned in plan.of(PlanState.DONE))
    return max(refused, int(failed_before), *(outcome.code for outcome in outcomes), 0)


def left_out(plan: Plan, outcomes: Sequence[CellOutcome]) -> list[tuple[Planned, str]]:
    """The cells that the time of a sweep left unmeasured, each with the reason. `outcomes` are
    those of `plan.open`, or empty when nothing was started."""
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
    """Stores rows `skipped` for cells that the sweep's time left out, each with its reason, except
    where the store has a row of the cell. `here`: this machine would have run them. Returns the
    number of rows. Raises RequestError and StoreError."""
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
        detail = f"not measured for the budget of {plan.time}: {reason}"
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


def _launch(sweep: _Sweep) -> None:
    """Runs the open cells, until each has ended or can't. Raises RequestError."""
    # With the threads that the plan chose, so that it is the same cell on another machine.
    requests = [
        {**planned.request, "threads": planned.cell.threads}
        for planned in sweep.plan.open
        if planned.cell
    ]
    if sweep.plan.engine == launchers.BASIC:
        for numbers in sweep.plan.jobs:
            job.run_together(sweep.record.folder, numbers, requests, sweep.update)
        return
    with _watched(sweep, WATCH_S[sweep.plan.engine]):
        if sweep.plan.engine == launchers.JOBLIB:
            _run_pool(requests, sweep)
            return
        try:
            _run_jobs(requests, sweep)
        except slurm.SlurmError as error:
            raise RequestError(str(error)) from error


def _run_jobs(requests: Sequence[dict[str, Any]], sweep: _Sweep) -> None:
    """In arrays of Slurm jobs, one after the other. Raises RequestError and SlurmError."""
    import submitit

    plan, record = sweep.plan, sweep.record
    slurm.queued(record.queue_name)  # raises where there is no cluster
    timed = any(planned.cell and planned.cell.plan.timed for planned in plan.open)
    given = launchers.job_parameters(plan.launcher, record.queue_name, timed)
    n_requeued = given.pop("slurm_max_num_timeout")
    folder = record.folder / slurm.LOGS / "%j"
    executor = submitit.AutoExecutor(folder, "slurm", slurm_max_num_timeout=n_requeued)
    executor.update_parameters(**given)
    for first in range(0, len(requests), MAX_ARRAY):
        array = requests[first : first + MAX_ARRAY]
        numbers = range(first, first + len(array))
        try:
            executor.map_array(job.CellJob(record.folder), numbers, array)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason"]
            reason = next((line for line in lines if "sbatch:" in line), lines[-1])
            raise RequestError(f"Slurm takes no job: {reason.strip()}") from error
        slurm.wait(record.queue_name)
    slurm.settle_record(record)


def _run_pool(requests: Sequence[dict[str, Any]], sweep: _Sweep) -> None:
    """In workers of this machine. When one dies so does its pool; cells that haven't begun go to a
    new one. Raises RequestError."""
    from joblib import Parallel, delayed

    record = sweep.record
    run_together = delayed(job.run_together)
    left = list(range(len(requests)))
    while left:
        reason = "its worker exited without a result"
        try:
            Parallel(sweep.plan.n_parallel, batch_size=1)(
                run_together(record.folder, numbers, {i: requests[i] for i in numbers})
                for each in sweep.plan.jobs if (numbers := [i for i in each if i in left])
            )  # fmt: skip
        except Exception as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
        for i in left:
            note = record.read_note(i)
            if note and not has_ended(note):
                outcome = CellOutcome(1, Status.ERROR, f"worker lost: {reason}")
                job.end(record, i, outcome, note)
        not_begun = [i for i in left if not record.read_note(i)]
        if record.problem():
            return
        if len(not_begun) == len(left):
            raise RequestError(f"no worker starts: {reason}")
        left = not_begun


@contextlib.contextmanager
def _watched(sweep: _Sweep, every_s: float) -> Iterator[None]:
    """Reads a sweep's notes while workers write them, and updates the display."""
    stopped = threading.Event()

    def read() -> None:
        for i in sweep.record.begun():
            before = sweep.notes.get(i, {})
            if not has_ended(before) and (note := sweep.record.read_note(i)) != before:
                sweep.update(i, note)
        sweep.display.refresh()

    def loop() -> None:
        while not stopped.wait(every_s):
            read()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        read()
