"""What Slurm says of a sweep's jobs, and rows for cells whose job died with all that was in it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.record import Record, ended

ASK_S = 60.0
"""A client that waits longer waits for a controller that isn't there."""
POLL_S = 2.0
SETTLE_S = 30.0
"""Accounting is that much behind the queue."""
ENDED = {
    "OUT_OF_MEMORY": "oom_host",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "FAILED": "error",
    "COMPLETED": "error",
    "BOOT_FAIL": "error",
}
"""Slurm's word for a job without a row → the row's status. Others (cancelled, preempted, a lost
node) say nothing of the cell: it stays to do."""
MEMORY = re.compile(
    r"oom|out of memory|exceeded.{0,20}memory limit|memory.{0,20}being killed", re.I
)
LOG_LINES = 20
GOING = ("RUNNING", "PENDING", "COMPLETING")


class Job(NamedTuple):
    """`id` as the queue writes it: 17_3 in an array."""

    id: str
    state: str
    node: str
    why: str = ""


class SlurmError(RuntimeError):
    """A client of Slurm failed: one line."""


def queued(name: str) -> list[Job]:
    """The jobs of this name that wait or run. Raises SlurmError."""
    said = _ask(["squeue", "-h", "-r", f"--name={name}", "-o", "%i|%T|%N|%r"])
    return [Job(*line.split("|", 3)) for line in said.splitlines() if line.count("|") >= 3]


def accounted(name: str, since: float) -> dict[str, Job]:
    """Id → job of all the jobs of this name, ended ones too. Raises SlurmError."""
    start = datetime.fromtimestamp(since - 60).strftime("%Y-%m-%dT%H:%M:%S")
    said = _ask(["sacct", "-n", "-P", "-X", f"--name={name}", "-S", start,
                 "-o", "JobID,State,NodeList,ExitCode"])  # fmt: skip
    jobs = [Job(*line.split("|", 3)) for line in said.splitlines() if line.count("|") >= 3]
    # "CANCELLED by 0" is one state with a word more.
    return {job.id: job._replace(state=job.state.split()[0]) for job in jobs}


def cancel(name: str) -> None:
    """Raises SlurmError."""
    _ask(["scancel", f"--name={name}"])


def wait(name: str, told: Callable[[], None] = lambda: None) -> None:
    """Until no job of this name is in the queue: the launcher gives up at the first that fails."""
    while queued(name):
        told()
        time.sleep(POLL_S)


def lost(record: Record, count: int, since: float, wait: bool = True) -> dict[int, tuple[Job, str]]:
    """Number of a cell → its job and the end of the job's log, for each cell whose job ended
    without a word of its own. `wait`: until the accounts have caught up with the queue, which has
    no job of the sweep any more; else what is in the queue is no lost job. Raises SlurmError."""
    open_cells = [i for i in range(count) if not ended(record.read(i))]
    if not open_cells:
        return {}
    limit = time.monotonic() + SETTLE_S
    while True:
        jobs = accounted(record.queue_name, since)
        all_jobs = numbered(jobs.values())
        found = {i: all_jobs[i] for i in open_cells if i in all_jobs}
        if not wait:
            going = {job.id for job in queued(record.queue_name)}
            found = {i: j for i, j in found.items() if j.id not in going and j.state not in GOING}
        settled = not any(job.state in GOING for job in found.values())
        if (settled and found) or not wait or time.monotonic() > limit:
            return {i: (job, _log(record.folder, job)) for i, job in found.items()}
        time.sleep(POLL_S)


def status_of(job: Job, log: str) -> str | None:
    """The status of the row that a lost cell gets; None when it stays to do."""
    status = ENDED.get(job.state)
    return "oom_host" if status == "error" and MEMORY.search(log) else status


def numbered(jobs: Iterable[Job]) -> dict[int, Job]:
    """Number of a cell → its job. One array follows another, in the order of their ids; an array of
    one is a plain job."""
    found: dict[int, Job] = {}
    arrays: dict[int, list[Job]] = {}
    for job in jobs:
        arrays.setdefault(int(job.id.split("_")[0]), []).append(job)
    first = 0
    for _, members in sorted(arrays.items()):
        for job in members:
            _, _, number = job.id.partition("_")
            if number == "" or number.isdigit():
                found[first + int(number or 0)] = job
        first += len(members)
    return found


def _log(folder: Path, job: Job) -> str:
    """The last lines that a job wrote, and what Slurm wrote of it."""
    lines: list[str] = []
    base, _, number = job.id.partition("_")
    name = f"{base}_{number}_*" if number else f"{base}_*"
    for path in sorted((folder / ".submitit").glob(f"{base}*/{name}")):
        if path.suffix in (".out", ".err") or "_log" in path.name:
            lines += path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S)
    except FileNotFoundError:
        raise SlurmError(f"no {command[0]} on PATH") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} didn't answer in {ASK_S:.0f} s") from None
    if done.returncode:
        # The last line is the reason, those before it are the way there.
        why = (done.stderr.strip() or "failed").splitlines()[-1].removeprefix(f"{command[0]}: ")
        raise SlurmError(f"{command[0]}: {why}")
    return done.stdout


def columns(job: Job) -> Mapping[str, Any]:
    """What a lost cell's row says of its job."""
    return {"launcher": "slurm", "slurm_job_id": job.id, "node": job.node or None}
