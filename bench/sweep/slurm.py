"""A sweep's jobs as Slurm's clients report them: squeue, sacct and scancel."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.errors import RequestError
from bench.execution import runner
from bench.request.cell import Cell
from bench.rows.shards import StoreError
from bench.status import Status
from bench.sweep import launchers
from bench.sweep.log import CellOutcome, Record, has_ended, sweeps
from bench.sweep.plan import finished, measured

CLIENT_TIMEOUT_S = 60.0
"""Time limit of a client: after it, the controller is assumed to be unavailable."""
POLL_S = 2.0
SETTLE_S = 30.0
"""Seconds by which the accounts may lag behind the queue."""
STATUSES = {
    "OUT_OF_MEMORY": Status.OOM_HOST,
    "TIMEOUT": Status.TIMEOUT,
    "DEADLINE": Status.TIMEOUT,
    "FAILED": Status.ERROR,
    "COMPLETED": Status.ERROR,
    "BOOT_FAIL": Status.ERROR,
}
"""State of a job that left no row → status of the row. Other states (cancelled, preempted, a failed
node) aren't results of the cell, which is still to be run."""
MEMORY = re.compile(
    r"oom|out of memory|exceeded.{0,20}memory limit|memory.{0,20}being killed", re.I
)
LOG_LINES = 20
LOGS = ".submitit"
"""Name of the folder in that of a sweep."""
ACTIVE = ("RUNNING", "PENDING", "COMPLETING")


class Job(NamedTuple):
    """`id` in the form of the queue: 17_3 in an array; `detail`: why it waits, or its exit code."""

    id: str
    state: str
    node: str
    detail: str = ""


class SlurmError(RequestError):
    """A client of Slurm failed: one line."""


def queued(name: str) -> list[Job]:
    """The waiting and running jobs of this name. Raises SlurmError."""
    return _jobs(["squeue", "-h", "-r", f"--name={name}", "-o", "%i|%T|%N|%r"])


def accounted(name: str, since: float) -> list[Job]:
    """All the jobs of this name, ended ones too. Raises SlurmError."""
    start = datetime.fromtimestamp(since - 60).strftime("%Y-%m-%dT%H:%M:%S")
    jobs = _jobs(["sacct", "-n", "-P", "-X", f"--name={name}", "-S", start,
                  "-o", "JobID,State,NodeList,ExitCode"])  # fmt: skip
    # A state may include the user that caused it: "CANCELLED by 0".
    return [job._replace(state=job.state.split()[0]) for job in jobs]


def lost(record: Record, done: Container[str], lag_s: float) -> dict[int, Job]:
    """Number of a cell → its job, for each cell whose job left the queue without writing an outcome
    and whose plan_key isn't in `done`. For `lag_s` seconds it waits until the accounts have all of
    them. Raises SlurmError."""
    cells = enumerate(record.content["cells"])
    missing = [i for i, cell in cells if cell["plan_key"] not in done]
    not_ended = {i for i in missing if not has_ended(record.read_note(i))}
    limit = time.monotonic() + lag_s
    while not_ended:
        in_queue = {job.id for job in queued(record.queue_name)}
        accounts = by_cell(record, accounted(record.queue_name, record.content["started"]))
        left = {i: job for i, job in accounts.items() if job.id not in in_queue}
        jobs = {i: left[i] for i in not_ended & left.keys() if left[i].state not in ACTIVE}
        if jobs.keys() == not_ended or time.monotonic() >= limit:
            return jobs
        time.sleep(POLL_S)
    return {}


def status_of(job: Job, log: str) -> Status | None:
    """The status of the row that a lost cell gets; None if the cell is still to be run."""
    status = STATUSES.get(job.state)
    return Status.OOM_HOST if status == Status.ERROR and MEMORY.search(log) else status


def by_cell(record: Record, jobs: Iterable[Job]) -> dict[int, Job]:
    """Number of a cell → its job, by the ids with which the sweep's jobs were submitted; cells that
    answer together have one."""
    by_id = {job.id: job for job in jobs}
    return {i: by_id[job_id] for i, job_id in _job_ids(record).items() if job_id in by_id}


def _job_ids(record: Record) -> dict[int, str]:
    """The id of each cell's job."""
    return {int(i): job_id for i, job_id in record.content["jobs"].items()}


def _log(record: Record, job: Job) -> str:
    """The last lines of a job's output and of Slurm's messages about it."""
    lines: list[str] = []
    base, _, number = job.id.partition("_")
    name = f"{base}_{number}_*" if number else f"{base}_*"
    for path in sorted((record.folder / LOGS).glob(f"{base}*/{name}")):
        if path.suffix in (".out", ".err") or "_log" in path.name:
            lines += path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])


def _jobs(command: Sequence[str]) -> list[Job]:
    lines = output(command).splitlines()
    return [Job(*line.split("|", 3)) for line in lines if line.count("|") >= 3]


def output(command: Sequence[str]) -> str:
    """The output of a client of Slurm. Raises SlurmError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S)
    except FileNotFoundError:
        raise SlurmError(f"no {command[0]} on PATH") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} didn't answer in {CLIENT_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        # The last line is the reason.
        reason = (done.stderr.strip() or "failed").splitlines()[-1].removeprefix(f"{command[0]}: ")
        raise SlurmError(f"{command[0]}: {reason}")
    return done.stdout


# Rows for cells whose Slurm job was killed together with its supervisor, from Slurm's accounts.
#
# The sweep's own process writes them at its end. If it no longer runs (Ctrl-C leaves the jobs in
# the queue), `bench status` writes them, or the next sweep into the same folder before it plans.


def settle(results: Path) -> int:
    """Stores rows for the lost cells of a folder's sweeps whose process has ended, except for cells
    that have been measured since. Returns the number of rows. An error of Slurm is printed."""
    gone = [
        record
        for record in sweeps(results)
        if record.content["engine"] == launchers.SLURM and not is_alive(record)
    ]
    done = finished(measured(results)) if gone else {}
    return sum(settle_record(record, done, lag_s=0) for record in gone)


def is_alive(record: Record) -> bool:
    """Whether the process that began a sweep is alive on this machine."""
    here = record.content["host"] == socket.gethostname()
    return here and Path(f"/proc/{record.content['pid']}").exists()


def settle_record(record: Record, done: Container[str] = (), lag_s: float = SETTLE_S) -> int:
    """Writes the outcome of each lost cell of a sweep, and stores its row if Slurm's state of the
    job is a result of the cell: see `lost`. Returns the number of rows. Prints errors of Slurm."""
    n_rows = 0
    try:
        found = lost(record, done, lag_s)
    except SlurmError as error:
        print(f"bench: cells without a row stay to do: {error}", file=sys.stderr)
        return 0
    first_of = {job_id: i for i, job_id in reversed(_job_ids(record).items())}
    for i, job in found.items():
        planned, note, log = record.content["cells"][i], record.read_note(i), _log(record, job)
        # A cell whose turn had not come in its job stays to do.
        status = status_of(job, log) if note or i == first_of[job.id] else None
        killed = "killed for memory" if status == Status.OOM_HOST else "ended without a result"
        detail = f"job {job.id} on {job.node or 'no node'} {killed} ({job.state})\n{log}".strip()
        row_id = None
        if status:
            more = {"launcher": "slurm", "slurm_job_id": job.id, "node": job.node or None,
                    "status_stage": note.get("stage", ["start"])[0]}  # fmt: skip
            with contextlib.suppress(RequestError, StoreError):
                results = record.folder.parent.parent
                cell = Cell.from_json(planned["cell"]).hashed()
                row_id = runner.store_unmeasured(cell, results, status, detail, **more)["row_id"]
                n_rows += 1
        seconds = note.get("at", 0.0) - note.get("since", note.get("at", 0.0))
        outcome = CellOutcome(1, status or job.state.lower(), detail, row_id, seconds=seconds)
        record.end(i, {"slurm_job_id": job.id, "node": job.node, **note}, outcome)
    return n_rows
