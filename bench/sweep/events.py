"""`events=FILE`: what a command runs, as JSON lines that a tracker can follow while it runs.

Every process of a sweep appends to the same file. A line is one write at the end of the file, made
under a lock: what is there is whole lines, and what a killed writer left of one is removed by the
next. Each has `schema`, `time` (ISO 8601, UTC), `event`, `sweep` (the `run_id` of its rows), and

    sweep_started   cells, done (not run again), to_run, command, launcher, results
    cell_started    cell (its number, from 0), overrides
    stage           cell, stage, done, total: when another stage begins
    row             cell, row_id, status, seconds, and the row's key figures: it has not failed
    cell_failed     cell, status, reason, row_id where a row says so, seconds
    cell_refused    cell, reason: a wrong request
    cell_skipped    cell, reason: it didn't fit the time budget
    sweep_ended     exit_code (null where it was interrupted)

A cell that is refused or skipped before the sweep starts has its overrides in place of a number.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.errors import RequestError

SCHEMA = 1
NAME = "events"
FIGURES = (
    "method", "task", "model", "length", "device", "dtype", "seed", "metric", "value", "ci_lo",
    "ci_hi", "base_value", "quality_verdict", "lat_median_ns", "lat_ratio",
    "lat_ratio_ci_lo", "lat_ratio_ci_hi", "lat_verdict", "engine_ratio", "mem_ratio",
    "rss_peak_delta_bytes", "gpu_alloc_delta_bytes", "tpot_median_ns", "tpot_ratio",
    "kv_held_ratio", "max_length_fit",
)  # fmt: skip
"""Columns of a row that its event has, where they were measured."""
TAIL_BYTES = 1 << 16
FIRST = b'{"schema": '
"""The beginning of a file of events."""


@dataclass
class EventStream:
    """The events of one sweep; none are written where `path` is None. `exit_code` is what the sweep
    has come to."""

    path: Path | None
    sweep: str
    stages: dict[int, str] = field(default_factory=dict)
    exit_code: int | None = None

    def check_writable(self) -> None:
        """Makes the file where there is none. Raises RequestError where it can't be written, or
        holds something else."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _appended(self.path) as file:
                is_file = stat.S_ISREG(os.fstat(file).st_mode)
                first = os.pread(file, len(FIRST), 0) if is_file else b""
        except OSError as error:
            raise RequestError(
                f"{NAME}={self.path} can't be written: {error.strerror}; give another file"
            ) from error
        if not is_file:
            raise RequestError(f"{NAME}={self.path} is not a file")
        if not FIRST.startswith(first):
            raise RequestError(f"{NAME}={self.path} holds no events; give a new file")

    def write(self, event: str, **content: Any) -> None:
        """Appends one event. Where that fails, as on a full disk, the run goes on without it."""
        if self.path is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"schema": SCHEMA, "time": now, "event": event, "sweep": self.sweep, **content}
        text = json.dumps(line, ensure_ascii=False, default=str)
        try:
            with _appended(self.path) as file:
                _append(file, f"{text}\n".encode(errors="replace"))
        except OSError as error:
            print(f"bench: {NAME}={self.path}: {error.strerror}", file=sys.stderr)
            self.path = None

    @contextlib.contextmanager
    def around(self, **content: Any) -> Iterator[None]:
        """Writes that a sweep starts, and at the end that it has ended."""
        self.write("sweep_started", **content)
        try:
            yield
        except Exception as error:
            self.exit_code = 2 if isinstance(error, RequestError) else 1
            raise
        finally:
            self.write("sweep_ended", exit_code=self.exit_code)

    def stage(self, cell: int, stage: str, done: int, total: int) -> None:
        """Writes an event where the stage isn't that of the cell's last one."""
        if self.stages.get(cell) != stage:
            self.stages[cell] = stage
            self.write("stage", cell=cell, stage=stage, done=done, total=total)

    def following(self, cell: int, progress: Callable[..., None]) -> Callable[..., None]:
        """`progress`, with the stages that it is told of written as events too."""

        def report(stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
            self.stage(cell, stage, done, total)
            progress(stage, done, total, note)

        return report


def key_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row's event has of it."""
    values = {name: row.get(name) for name in FIGURES}
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def path_of(request: Mapping[str, Any]) -> Path | None:
    """The file of a request's `events`, as every process of a sweep finds it."""
    given = request.get(NAME)
    return Path(given).expanduser().resolve() if given else None


def without(overrides: Sequence[str]) -> list[str]:
    """A request's words but for its events, which change nothing that is measured."""
    return [override for override in overrides if not override.startswith(f"{NAME}=")]


@contextlib.contextmanager
def _appended(path: Path) -> Iterator[int]:
    """A descriptor at the end of the file, locked where the file system has locks. Not blocking: a
    named pipe without a reader would wait for one."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _append(file: int, line: bytes) -> None:
    """Raises OSError, and then nothing of the line is left."""
    size = os.fstat(file).st_size
    tail = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
    if tail and not tail.endswith(b"\n"):
        size -= len(tail) - (tail.rfind(b"\n") + 1)
        os.ftruncate(file, size)
    if os.write(file, line) < len(line):
        os.ftruncate(file, size)
        raise OSError(28, os.strerror(28))
