"""Where a cell runs: the launcher, the Slurm job and its node, and other work on that node."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import uuid
from dataclasses import dataclass
from typing import Any

SQUEUE_TIMEOUT_S = 20.0
RUN_ID = uuid.uuid4().hex[:12]
"""The id that all rows of this process share."""


@dataclass(frozen=True)
class Origin:
    """The start of a cell: the id that its row shares with others of one command, the name of the
    launcher, and the sweep's other workers on this machine."""

    run_id: str = RUN_ID
    launcher: str | None = None
    workers: str | None = None

    def columns(self) -> dict[str, Any]:
        """The columns of a row on the place where it runs."""
        job = job_id()
        return {
            "run_id": self.run_id,
            "launcher": self.launcher or ("slurm" if job else "local"),
            "slurm_job_id": job,
            "node": os.environ.get("SLURMD_NODENAME", socket.gethostname()) if job else None,
            "attempt": 1 + int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        }

    def neighbours(self) -> set[str]:
        """Other work known to run on this machine: other jobs on the node, the sweep's other
        workers."""
        names = {self.workers} if self.workers else set()
        if job := job_id():
            node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
            command = ["squeue", "-h", "-r", "-t", "RUNNING", "-w", node, "-o", "%i"]
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                queue = subprocess.run(
                    command, capture_output=True, text=True, timeout=SQUEUE_TIMEOUT_S, check=True
                ).stdout
                names |= {f"job {other}" for other in queue.split() if other != job}
        return names


class JobPreempted(RuntimeError):
    """Slurm is ending the job of this process: preempted, not a result of the cell."""


def check_preempted(exit_signal: int | None) -> None:
    """Raises JobPreempted when a child was ended by the signal that Slurm sends to a whole job."""
    if exit_signal == signal.SIGTERM and job_id():
        raise JobPreempted(f"Slurm is ending job {job_id()}")


def job_id() -> str | None:
    """The job of this process as squeue writes it, such as 17 or 17_3."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    return os.environ.get("SLURM_JOB_ID")


def memory_limit() -> int | None:
    """Bytes that Slurm grants the job of this process on its node; None outside a job."""
    node = os.environ.get("SLURM_MEM_PER_NODE")
    cpu, cpus = os.environ.get("SLURM_MEM_PER_CPU"), os.environ.get("SLURM_CPUS_ON_NODE")
    if node and node.isdigit() and int(node):
        return int(node) << 20
    if cpu and cpus and cpu.isdigit() and cpus.isdigit():
        return (int(cpu) * int(cpus)) << 20
    return None


def memory_left() -> int | None:
    """Bytes of the limit that this process and its children don't hold; None outside a job."""
    import psutil

    limit = memory_limit()
    if limit is None:
        return None
    for process in [own := psutil.Process(), *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # one that has ended holds nothing
            limit -= process.memory_full_info().pss
    return limit
