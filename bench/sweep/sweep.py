"""`bench run -m`: the open cells of a plan through Hydra's sweeper and launcher, one row each.

The plan is made before anything starts, so that a wrong request is refused at once and a finished
cell costs nothing. Each cell writes its progress to the sweep's record, wherever it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bench.errors import RequestError
from bench.execution.runner import check_writable
from bench.host import job as environment
from bench.request import plugins, schema
from bench.request.cell import Cell
from bench.request.overrides import hydra_overrides, quoted
from bench.status import Status
from bench.store.store import LIGHT, Store
from bench.sweep import job, launchers, orphaned_jobs, slurm
from bench.sweep.plan import plan
from bench.sweep.planned import Plan, Planned, PlanState
from bench.sweep.state import CellOutcome, Note, Record, has_ended
from bench.units import counted

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
    """What the sweeper and the launcher in this process share. `notes` are the last ones seen."""

    plan: Plan
    record: Record
    display: Display
    refused: str | None = None
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


_current: _Sweep | None = None


def settled_plan(overrides: Sequence[str]) -> Plan:
    """The plan of a sweep, once jobs of earlier sweeps that were lost have their rows. Raises
    RequestError."""
    first = plan(overrides)
    if first.engine == launchers.SLURM and first.open and orphaned_jobs.settle(first.results):
        return plan(overrides)
    return first


def run(plan: Plan, command: str, display: Display, name: str = "") -> list[CellOutcome]:
    """Run the open cells of a plan; one that fails doesn't stop the rest. `name` is the sweep's id.
    Raises RequestError."""
    global _current
    check_writable(plan.results)
    record = Record.begin(plan, command, name)
    n_timed = any(planned.cell and planned.cell.plan.speed for planned in plan.open)
    first = hydra_overrides([*plan.fixed, *plan.open[0].overrides])
    overrides = [*first, quoted("hydra.sweep.dir", str(record.folder))]
    if plan.engine == launchers.SLURM:
        overrides += launchers.slurm_overrides(plan.launcher, record.queue_name, n_timed)
    os.environ[environment.LAUNCHER] = plan.launcher_name
    if plan.engine == launchers.JOBLIB and plan.n_parallel != 1:
        os.environ[environment.BESIDE] = f"n_jobs={plan.launcher['n_jobs']}"
    sweep = _current = _Sweep(plan, record, display)
    job.listener = None if plan.engine in WATCH_S else sweep.update
    try:
        with display:
            _run_hydra(overrides)
    except KeyboardInterrupt:
        _print_interrupted(plan, record)
        raise
    finally:
        _current = job.listener = None
        for name in (environment.LAUNCHER, environment.BESIDE, environment.RUN_ID):
            os.environ.pop(name, None)
    if sweep.refused:
        raise RequestError(sweep.refused)
    return sweep.outcomes()


def exit_code(plan: Plan, outcomes: Sequence[CellOutcome]) -> int:
    """2 when a request was refused, 1 when a run failed, now or before, else 0."""
    refused = 2 if plan.of(PlanState.REFUSED) else 0
    failed_before = any(planned.reason for planned in plan.of(PlanState.DONE))
    return max(refused, int(failed_before), *(outcome.code for outcome in outcomes), 0)


def _run_hydra(overrides: Sequence[str]) -> None:
    import hydra

    schema.register()
    sys.argv = ["bench", "-m", *overrides]
    hydra.main(version_base="1.3", config_path=str(plugins.CONF), config_name="config")(
        job.run_job
    )()


def launch_planned(launcher: Any) -> None:
    """What the sweeper does: gives the launcher the open cells, until each has ended or can't."""
    sweep = _current
    assert sweep is not None, "bench run -m starts a sweep"
    jobs = [
        hydra_overrides([*sweep.plan.fixed, *p.overrides, *_threads(p)]) for p in sweep.plan.open
    ]
    every_s = WATCH_S.get(sweep.plan.engine)
    if every_s is None:
        _launch_each(launcher, jobs, sweep)
        return
    with _watched(sweep, every_s):
        try:
            if sweep.plan.engine == launchers.SLURM:
                slurm.queued(sweep.record.queue_name)  # raises where there is no cluster
                for first in range(0, len(jobs), MAX_ARRAY):
                    _launch_array(launcher, jobs[first : first + MAX_ARRAY], first, sweep)
                orphaned_jobs.settle_record(sweep.record)
            else:
                _launch_pool(launcher, jobs, sweep)
        except (RequestError, slurm.SlurmError) as error:
            # Hydra would print it with its own advice.
            sweep.refused = str(error)


def _threads(planned: Planned) -> list[str]:
    """The threads that the plan chose, so that it is the same cell on another machine."""
    assert planned.cell is not None
    return [] if planned.request["threads"] else [f"threads={planned.cell.threads}"]


def _launch_each(launcher: Any, jobs: list[list[str]], sweep: _Sweep) -> None:
    """In this process. A cell that Hydra can't compose doesn't stop the others; where their folder
    is removed or turns read-only, none of the rest begins."""
    for i, overrides in enumerate(jobs):
        if problem := sweep.record.problem():
            job.end(sweep.record, i, CellOutcome(1, Status.ERROR, problem), {})
            continue
        try:
            [job_return] = launcher.launch([overrides], initial_job_idx=i)
            _ = job_return.return_value  # raises what the job raised
        except Exception as error:
            job.end(sweep.record, i, CellOutcome(2, PlanState.REFUSED, _first_line(error)), {})


def _launch_array(launcher: Any, jobs: list[list[str]], first: int, sweep: _Sweep) -> None:
    name = sweep.record.queue_name
    began = sweep.record.content()["started"]
    before = set(slurm.accounted(name, began)) if first else set()
    try:
        launcher.launch(jobs, initial_job_idx=first)
    except Exception as error:
        # It raises when a job failed, and when nothing was submitted at all.
        if not slurm.queued(name) and before >= set(slurm.accounted(name, began)):
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason"]
            reason = next((line for line in lines if "sbatch:" in line), lines[-1])
            raise RequestError(f"Slurm takes no job: {reason.strip()}") from error
    slurm.wait(name)


def _launch_pool(launcher: Any, jobs: list[list[str]], sweep: _Sweep) -> None:
    """In workers of this machine. When one dies so does its pool; cells that haven't begun go to a
    new one."""
    record = sweep.record
    left = list(range(len(jobs)))
    while left:
        reason = "its worker exited without a result"
        try:
            for numbers in _consecutive(left):
                launcher.launch([jobs[i] for i in numbers], initial_job_idx=numbers[0])
        except Exception as error:
            reason = _first_line(error)
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


def _consecutive(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Runs of numbers that follow one another: a launcher numbers its jobs from a first."""
    for _, run in itertools.groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
        yield [number for _, number in run]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


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


def _print_interrupted(plan: Plan, record: Record) -> None:
    n_ended = sum(has_ended(record.read_note(i)) for i in range(len(plan.open)))
    print(f"\n{n_ended} of {counted(len(plan.open), 'cell')} ended", file=sys.stderr)
    if plan.engine == launchers.SLURM:
        print(
            "its jobs stay in the queue: bench status shows them, "
            f"bench status --cancel {record.id} takes them out", file=sys.stderr,
        )  # fmt: skip
