"""`bench run -m`: the open cells of a plan, in this process, in workers (joblib) or in Slurm jobs
(submitit), one row each.

The plan is made before anything starts, so that a wrong request is refused at once and a finished
cell costs nothing. On any launcher, each cell writes its progress to the sweep's record.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.execution import cell_group, runner
from bench.host import host
from bench.host.host import JobPreempted, Origin
from bench.request.cell import Cell
from bench.request.schema import MEASURES
from bench.rows.shards import StoreError
from bench.rows.store import Store
from bench.status import PlanState, Status
from bench.sweep import launchers, slurm
from bench.sweep.log import CellOutcome, Note, Record, has_ended
from bench.sweep.plan import Plan, Planned
from bench.units import counted, span

MAX_ARRAY = 1000
"""Jobs of one array: one less than Slurm's own default of MaxArraySize."""
REASON_LETTERS = 160
WATCH_S = {launchers.JOBLIB: 1.0, launchers.SLURM: 3.0}
"""Launchers whose cells run in other processes → seconds between two reads of their notes."""
UNTIL_KILLED_S = 600.0
LIMITS = (Status.OOM_HOST, Status.OOM_DEVICE, Status.TIMEOUT)
"""Statuses of a cell that ran out of memory or time; longer inputs would have them, too."""


def run(plan: Plan, command: str, display: Any, name: str = "") -> list[CellOutcome]:
    """Run the open cells of a plan; a failed cell doesn't stop the rest. `display` shows them: a
    bench.terminal.run_progress.SweepProgress. `name` is the sweep's id. Raises RequestError."""
    runner.check_writable(plan.results)
    listener = display.update if plan.engine == launchers.BASIC else None
    record = Record.begin(plan, command, name, listener)
    numbers = range(len(plan.open))
    try:
        with display.live or contextlib.nullcontext():
            if plan.engine == launchers.BASIC:
                for group in plan.jobs:
                    run_together(record, group)
            else:
                launch = _run_pool if plan.engine == launchers.JOBLIB else _run_jobs
                with _watched(record, display, WATCH_S[plan.engine]):
                    launch(plan, record)
    except KeyboardInterrupt:
        n_ended = sum(has_ended(record.read_note(i)) for i in numbers)
        print(f"\n{n_ended} of {counted(len(numbers), 'cell')} ended", file=sys.stderr)
        if plan.engine == launchers.SLURM:
            print(
                "its jobs stay in the queue: bench status shows them, "
                f"bench status --cancel {record.id} takes them out", file=sys.stderr,
            )  # fmt: skip
        raise
    outcomes = [record.outcome(i) for i in numbers]
    if record.folder.exists():
        return outcomes
    stored = Store(plan.results).rows(["row_id"])["row_id"].to_pylist()
    gone = f"its row is gone: {record.folder} was removed while the sweep ran"
    return [
        replace(each, code=1, status=Status.ERROR, reason=gone)
        if each.row_id and each.row_id not in stored
        else each
        for each in outcomes
    ]


def exit_code(plan: Plan, outcomes: Sequence[CellOutcome]) -> int:
    """2 when a request was refused, 1 when a run failed, now or before, else 0."""
    refused = 2 if plan.of(PlanState.REFUSED) else 0
    failed_before = any(planned.reason for planned in plan.of(PlanState.DONE))
    return max(refused, int(failed_before), *(outcome.code for outcome in outcomes), 0)


def left_out(plan: Plan, outcomes: Sequence[CellOutcome]) -> list[tuple[Planned, str]]:
    """The cells that weren't measured for lack of time, each with the reason. `outcomes` are those
    of `plan.open`, or empty when nothing was started."""
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


def store_rows(plan: Plan, cells: Sequence[tuple[Planned, str]], here: bool) -> None:
    """Stores rows `skipped` for cells left out for lack of time, each with its reason, unless the
    store has a row of the cell. `here`: this machine would have run them. Raises RequestError and
    StoreError."""
    store, hashed = Store(plan.results), dict[str, Any]()
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
        facts = host.fingerprint(cell.threads, cell.device["kind"]) if here else {}
        facts |= {"status_stage": "plan", "experiment": planned.request["experiment"]}
        runner.store_unmeasured(cell, plan.results, Status.SKIPPED, detail, **facts)


def _run_jobs(plan: Plan, record: Record) -> None:
    """Runs the cells in arrays of Slurm jobs, one after the other. Raises RequestError."""
    import submitit

    slurm.queued(record.queue_name)  # raises if there is no cluster
    timed = any(planned.cell and planned.cell.plan.timed for planned in plan.open)
    given = launchers.job_parameters(plan.launcher, record.queue_name, timed)
    n_requeued = given.pop("slurm_max_num_timeout")
    folder = record.folder / slurm.LOGS / "%j"
    executor = submitit.AutoExecutor(folder, "slurm", slurm_max_num_timeout=n_requeued)
    executor.update_parameters(**given)
    for first in range(0, len(plan.jobs), MAX_ARRAY):
        array = plan.jobs[first : first + MAX_ARRAY]
        try:
            jobs = executor.map_array(CellsJob(record.folder), array)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason"]
            reason = next((line for line in lines if "sbatch:" in line), lines[-1])
            raise RequestError(f"Slurm takes no job: {reason.strip()}") from error
        pairs = zip(jobs, array, strict=True)
        record.submitted({i: job.job_id for job, numbers in pairs for i in numbers})
        while slurm.queued(record.queue_name):
            time.sleep(slurm.POLL_S)
    slurm.settle_record(record)


def _run_pool(plan: Plan, record: Record) -> None:
    """Runs the cells in workers of this machine. If a worker dies, its pool ends; cells that
    haven't begun go to a new pool. Raises RequestError."""
    from joblib import Parallel, delayed

    together = delayed(run_together)
    left = list(range(len(plan.open)))
    while left:
        try:
            for notes in Parallel(plan.n_parallel, batch_size=1)(
                together(record, numbers)
                for each in plan.jobs if (numbers := [i for i in each if i in left])
            ):  # fmt: skip
                record.own.update(notes)
            return
        except Exception as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
        for i in left:
            note = record.read_note(i)
            if note and not has_ended(note):
                record.end(i, note, CellOutcome(1, Status.ERROR, f"worker lost: {reason}"))
        not_begun = [i for i in left if not record.read_note(i)]
        if len(not_begun) == len(left):
            raise RequestError(f"no worker starts: {reason}")
        left = not_begun


@contextlib.contextmanager
def _watched(record: Record, display: Any, every_s: float) -> Iterator[None]:
    """Reads a sweep's notes while workers write them, and updates the display."""
    stopped = threading.Event()
    seen: dict[int, Note] = {}

    def read() -> None:
        for i in record.begun():
            before = seen.get(i, {})
            if not has_ended(before) and (note := record.read_note(i)) != before:
                seen[i] = note
                display.update(i, note)
        display.refresh()

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


# One cell of a sweep, in the process of the launcher: this one, a worker, or a node of a cluster.
# Its progress is written to the sweep's record.


@dataclass(frozen=True)
class CellsJob:
    """Runs cells of the sweep with this folder in a job of Slurm: pickle needs no more."""

    folder: Path

    def __call__(self, numbers: list[int]) -> None:
        run_together(Record.read(self.folder), numbers)

    def checkpoint(self, numbers: list[int]) -> Any:
        """Called by submitit at the job's time limit: the same job again, which continues."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, numbers)


def run_together(record: Record, numbers: Sequence[int]) -> dict[int, Note]:
    """Runs cells of a sweep one after the other. The first run answers the prompts of all cells, or
    times their tokens; if there is no time for it, no cell runs. Returns their last notes."""
    timed: dict[str, Any] = {}
    for place, i in enumerate(numbers):
        if place and (first := record.outcome(numbers[0])).status == PlanState.OVER_BUDGET:
            record.end(i, {}, first)
            continue
        run_cell(record, i, None if place else numbers[1:], timed)
    return record.own


def run_cell(
    record: Record, index: int, together: Sequence[int] | None, timed: dict[str, Any]
) -> None:
    """Runs one cell of a sweep. `together`: further cells whose prompts are answered together with
    this cell's, before it runs; None: an earlier cell included this one. `timed`: columns of cells
    that have been timed together and not run yet, by their key."""
    content, planned = record.content, record.content["cells"][index]
    request = planned["request"]
    origin = Origin(record.id, content["launcher"], content["workers"])
    where = origin.columns()
    process = {"since": time.time(), "pid": os.getpid()}
    process |= {name: where[name] for name in ("slurm_job_id", "node") if where[name]}
    has_answers = together is None and not MEASURES[request["measure"]].speed
    if not has_answers and (reason := reason_to_skip(record, index)):
        record.end(index, process, CellOutcome(0, PlanState.OVER_BUDGET, reason))
        return
    record.events.write("cell_started", cell=index, overrides=planned["overrides"])

    def progress(stage: str, done: int, total: int, note: str = "") -> None:
        record.reach(index, process, stage, done, total)

    progress("starts", 0, 0)
    began = time.monotonic()
    try:
        others = [Cell.from_json(content["cells"][i]["cell"]) for i in together or ()]
        outcome = _run(request, progress, origin, others, timed)
    except JobPreempted:
        progress("is ended", 0, 0)
        # If the job returned, Slurm would consider it complete.
        time.sleep(UNTIL_KILLED_S)
    else:
        record.end(index, process, replace(outcome, seconds=time.monotonic() - began))


def reason_to_skip(record: Record, index: int) -> str | None:
    """Why a cell isn't started when its turn comes: a shorter one of the same overrides ran out of
    memory or time, or the cell would end too late by its estimate, corrected by the times of ended
    cells, preferably of its method. The first cell always starts: a budget that is too small for
    any cell is an error in the budget."""
    cells, until = record.content["cells"], record.content["until"]
    if not index or not until:
        return None
    overrides, length, method = _parts(cells[index]["overrides"])
    slowdowns: list[tuple[bool, int, float]] = []
    for i, cell in enumerate(cells[:index]):
        note = record.read_note(i)
        others, shorter, other_method = _parts(cell["overrides"])
        if not has_ended(note):
            continue
        if note["status"] in LIMITS and others == overrides and shorter < length:
            return f"at length={shorter} it ended as {note['status']}"
        if note["status"] == Status.OK and cell["seconds"] > 0:
            slowdown = note["seconds"] / cell["seconds"]
            slowdowns.append((other_method == method, shorter, slowdown))
    needed = cells[index]["seconds"] * (max(slowdowns)[2] if slowdowns else 1.0)
    left = until - time.time()
    if needed > left:
        return f"it would take about {span(needed)}, and {span(max(0.0, left))} are left"
    return None


def _parts(overrides: Sequence[str]) -> tuple[list[str], int, list[str]]:
    """A cell's overrides without the length; the length, 0 if it isn't one of them; and the
    overrides of the method."""
    rest = [override for override in overrides if not override.startswith("length=")]
    lengths = (override.removeprefix("length=") for override in overrides if override not in rest)
    return rest, int(next(lengths, 0)), [each for each in rest if each.startswith("method")]


def _run(
    request: dict[str, Any], progress: Callable[..., None], origin: Origin, others: Sequence[Cell],
    timed: dict[str, Any]
) -> CellOutcome:  # fmt: skip
    """Runs one request, once the prompts of it and of `others` are answered, or their tokens are
    `timed`. All errors become outcomes, so that the other cells of the sweep run."""
    results = Path(request["results"]).expanduser().resolve()
    try:
        cell = Cell.of(request)
        if others:
            more = (replace(cell, method=o.method, code_sha256=o.code_sha256) for o in others)
            timed |= cell_group.measure([cell, *more], results, request["deadline_s"], progress)
        how = {name: request[name] for name in runner.REQUESTED}
        how["timed"] = timed.pop(cell.key, None)
        row = runner.run(cell, results, progress=progress, origin=origin, **how)
    except RequestError as error:
        return CellOutcome(2, PlanState.REFUSED, str(error))
    except StoreError as error:
        return CellOutcome(1, "not stored", str(error))
    except JobPreempted:
        raise
    except Exception as error:
        # Matched by name, since submitit is an extra: a job's last time limit, after all requeues.
        if type(error).__name__ == "UncompletedJobError":
            detail = f"the job's time limit: {error}"
            known = {**origin.columns(), "experiment": request["experiment"]}
            lost = runner.store_unmeasured(cell, results, Status.TIMEOUT, detail, **known)
            return CellOutcome(1, Status.TIMEOUT, detail, lost["row_id"])
        return CellOutcome(1, Status.ERROR, f"{type(error).__name__}: {error}")
    return CellOutcome.of(row)


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
