"""Where a cell runs: what started it, which job of which node, and what else runs there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import Any

LAUNCHER = "BENCH_LAUNCHER"
BESIDE = "BENCH_BESIDE"
"""Environment variables that a sweep sets for its workers: launcher, and what it runs beside."""
RUN_ID = "BENCH_RUN_ID"
"""What the rows of one command share."""
ASK_S = 20.0


class Cut(RuntimeError):
    """The job of this process is being ended from outside, which says nothing of the cell."""


def check_cut(exit_signal: int | None) -> None:
    """Raises Cut when a child met the signal by which Slurm ends a whole job."""
    if exit_signal == signal.SIGTERM and job_id():
        raise Cut(f"job {job_id()} is ended from outside")


def columns() -> dict[str, Any]:
    """The columns of a row that say where it runs."""
    job = job_id()
    return {
        "launcher": os.environ.get(LAUNCHER, "slurm" if job else "local"),
        "slurm_job_id": job,
        "node": os.environ.get("SLURMD_NODENAME", socket.gethostname()) if job else None,
        "attempt": 1 + int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    }


def job_id() -> str | None:
    """The job of this process as the queue writes it, such as 17 or 17_3."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    return os.environ.get("SLURM_JOB_ID")


def beside() -> set[str]:
    """What else runs on this machine that is known of: other jobs of the node, other workers of
    the sweep."""
    found = {told} if (told := os.environ.get(BESIDE)) else set()
    if job := job_id():
        node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        command = ["squeue", "-h", "-r", "-t", "RUNNING", "-w", node, "-o", "%i"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=ASK_S, check=True
            )
            found |= {f"job {other}" for other in done.stdout.split() if other != job}
    return found


def memory_limit() -> int | None:
    """Bytes that the job of this process may take on the node, as Slurm says; None outside."""
    node = os.environ.get("SLURM_MEM_PER_NODE")
    cpu, cpus = os.environ.get("SLURM_MEM_PER_CPU"), os.environ.get("SLURM_CPUS_ON_NODE")
    if node and node.isdigit() and int(node):
        return int(node) << 20
    if cpu and cpus and cpu.isdigit() and cpus.isdigit():
        return (int(cpu) * int(cpus)) << 20
    return None
