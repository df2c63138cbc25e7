"""A cell's run: its lock, the environment and limits of its child processes, and the process from
which they are forked. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from bench.execution import spawn
from bench.execution.spawn import ForkServer
from bench.execution.supervisor import Handlers, Limits, Outcome, Progress, Running, started
from bench.host import host, linux
from bench.request.cell import Cell
from bench.rows.shards import remove_leftovers

PRELOAD = ("bench.measure.quality", "bench.measure.latency", "bench.measure.memory",
           "bench.models.t5")  # fmt: skip
"""Modules that the fork server imports, since most children need them. The default model's family
imports those that all Hugging Face families need."""
CHILD_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}
GPU_ENVIRONMENT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With it, torch looks for a GPU without starting CUDA, which would not survive a fork."""
MEMORY_LIMIT = "BENCH_MEMORY_LIMIT_BYTES"
"""Environment variable: the most bytes a child may allocate. Not part of a cell."""
SPARE_BYTES = 512 << 20


@dataclass(frozen=True)
class CellRun:
    """A cell, the folder of its predictions, and the limits of each child. With an `environment`, a
    child is a fresh interpreter: malloc reads it at the start. `scored` holds the answers that the
    quality stage keeps for the latency stage. `share_prefill`: method and vanilla may answer
    together. `timed`: columns of a cell whose tokens were timed together with other cells'."""

    cell: Cell
    results: Path
    deadline_s: float
    progress: Progress | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    scored: Mapping[str, Any] | None = None
    share_prefill: bool = True
    timed: Mapping[str, Any] | None = None

    def child(self, module: str, handlers: Handlers | None = None, **request: Any) -> Outcome:
        """Run `measure` of a module of `bench` in a child, on the cell and `request`."""
        with self.started(module, handlers, self.progress, **request) as running:
            return running.outcome()

    def started(
        self,
        module: str,
        handlers: Handlers | None = None,
        progress: Progress | None = None,
        **request: Any,
    ) -> AbstractContextManager[Running]:
        content = {"cell": self.cell.to_json(), **request}
        server = None if self.environment else self.server()
        limits = self.limits(server)
        return started(f"bench.{module}", content, limits, server, progress, handlers)

    def limits(self, server: ForkServer | None) -> Limits:
        """Limits of a child. Its memory, including the pages that it shares with the server, is
        limited to what is free less a reserve, so that the child fails before other processes."""
        limits = Limits.after(self.deadline_s, environment=self.variables)
        if not self.on_cpu:
            # A GPU's driver maps far more memory than it uses, and the limit would count it.
            return limits
        shared = linux.status_bytes("VmRSS", server.child.pid) if server else 0
        free = host.available_memory()
        if (left := host.job_memory_left()) is not None:
            # Slurm kills the whole job at its limit.
            free = min(free, max(2 * SPARE_BYTES, left))
        most = max(0, free + shared - SPARE_BYTES)
        own = os.environ.get(MEMORY_LIMIT)
        return replace(limits, memory_bytes=min(most, int(own)) if own else most)

    @property
    def on_cpu(self) -> bool:
        return bool(self.cell.device["kind"] == "cpu")

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of a child."""
        environment = CHILD_ENVIRONMENT if self.on_cpu else {**CHILD_ENVIRONMENT, **GPU_ENVIRONMENT}
        threads = {"OMP_NUM_THREADS": str(self.cell.threads), "OMP_PROC_BIND": "close"}
        return {**threads, **environment, **self.environment}

    def server(self) -> ForkServer:
        """The process from which children are forked: the cell's parent, once it has loaded the
        cell."""
        imports = spawn.fork_server(self.variables, PRELOAD)
        parent = spawn.fork_servers.get(_parent_key(self.cell))
        return parent if parent and parent.usable else imports


def load_parent(run: CellRun) -> Outcome | None:
    """Have a process load the cell's weights, and a fork of it, from which children are forked, the
    cell's inputs, unless those of an earlier cell hold them. Returns the failure, or None."""
    cell = run.cell
    if not run.on_cpu or cell.probe or (cell.plan.training and cell.recipe):
        return None
    answers = cell.plan.quality and cell.model["weights"] != "random"
    server = spawn.fork_server(run.variables, PRELOAD)
    for key, encodes in (
        ((MODEL, model_key(cell), cell.threads), None),
        (_parent_key(cell), "all" if answers else "timed"),
    ):
        loaded_one = spawn.fork_servers.get(key)
        if loaded_one is None or not loaded_one.usable:
            for other in [other for other in spawn.fork_servers if other[0] in (PARENT, key[0])]:
                spawn.fork_servers.pop(other).close()
            if failed := _load(run, server, key, encodes):
                return failed
        server = spawn.fork_servers[key]
    return None


def _load(
    run: CellRun, server: ForkServer, key: tuple[object, ...], encodes: str | None
) -> Outcome | None:
    """Have a fork of a server load the cell, and become a server with this key."""
    request = {"cell": run.cell.to_json(), "encodes": encodes}

    def loaded(running: Running, message: Mapping[str, Any]) -> NoReturn:
        raise _ParentLoaded

    with ExitStack() as opened:
        running = opened.enter_context(
            started(
                "bench.execution.fork_server", request, run.limits(server), server, run.progress,
                {"loaded": loaded}, socket.SOCK_SEQPACKET,
            )
        )  # fmt: skip
        try:
            return running.outcome()
        except _ParentLoaded:
            fork = ForkServer(running.link, running.child, opened.pop_all())
            spawn.fork_servers[key] = fork
    return None


MODEL, PARENT = "model", "parent"


def _parent_key(cell: Cell) -> tuple[object, ...]:
    return (PARENT, inputs_key(cell), cell.threads)


def model_key(cell: Cell) -> str:
    """Equal for cells whose weights are equal without a method."""
    parts = [cell.model, cell.dtype, cell.device["kind"], cell.seed]
    return json.dumps(parts, sort_keys=True, default=dict)


def inputs_key(cell: Cell) -> str:
    """Equal for cells with equal encoded inputs."""
    parts = [cell.task, cell.data, cell.n, cell.length, cell.turns, cell.prompt,
             cell.skip_unanswerable]  # fmt: skip
    return json.dumps([model_key(cell), *parts], sort_keys=True, default=dict)


class _ParentLoaded(Exception):
    """A parent has loaded its cell."""


# One run of a cell, and one training, at a time, by a lock in its folder. The kernel holds the lock
# (flock), also through NFS, so it is released whenever its process ends. A stale lock file does not
# block other runs. The file names the owner for waiting processes.

OWNER_BYTES = 1 << 12


@contextlib.contextmanager
def lock_held(path: Path, report: Callable[[str], object]) -> Iterator[None]:
    """Hold a lock inside; wait while another process holds it. First, leftovers of killed runs are
    removed from its folder. `report` is called with a line that names the other process, or reports
    that the file system has no locks: the block then runs without one."""
    remove_leftovers(path.parent)
    lock = None
    try:
        lock = _locked(path, report)
    except OSError as error:
        report(f"without a lock, so don't start this cell twice at once: {path}: {error.strerror}")
    try:
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(lock)


def _locked(path: Path, report: Callable[[str], object]) -> int:
    """The descriptor of the locked file; closing it unlocks the file. Raises OSError."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, OWNER_BYTES, 0).decode(errors="replace")
                report(f"waiting for {owner or 'another run of this cell'}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    of_job = f" (job {host.job_id()})" if host.job_id() else ""
                    owner = f"process {os.getpid()} on {socket.gethostname()}{of_job}"
                    since = datetime.now(UTC).isoformat(timespec="seconds")
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, f"{owner}, at work on it since {since}".encode(), 0)
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its last owner removed the file: a later process locks another
