"""The log of a sweep: the state of its cells in its own folder, RESULTS/.sweeps/ID, and its events.

The process that runs a cell (this one, a worker, a job on a cluster) writes one small file for it,
atomically; processes that watch the sweep read these files. Rows go to the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.execution.runner import unwritable
from bench.files import replacing
from bench.sweep.plan import Plan

FOLDER = ".sweeps"
SWEEP = "sweep.json"
NAME = "bench-"
"""Prefix of the name that a sweep's jobs have in a queue; its id follows."""

Note = dict[str, Any]
"""What was last written of a cell: its `state`, and its CellOutcome once that is ended."""


@dataclass(frozen=True)
class CellOutcome:
    """How one cell of a sweep ended: exit code, status, the reason, the row's id, its main
    figures as text and the key ones by column."""

    code: int
    status: str
    reason: str = ""
    row_id: str | None = None
    figures: str = ""
    seconds: float = 0.0
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """The folder of one sweep."""

    folder: Path

    @classmethod
    def begin(cls, plan: Plan, command: str, name: str = "") -> Record:
        """A new folder with the open cells of a plan, under a name of `new_id`. Raises RequestError
        when that can't be."""
        started = time.time()
        record = cls(plan.results / FOLDER / (name or new_id()))
        content = {
            "command": command,
            "launcher": plan.launcher_name,
            "engine": plan.engine,
            "workers": plan.workers,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": started,
            "events": str(plan.events) if plan.events else None,
            "until": started + plan.time_s if plan.time_s else None,
            "cells": [
                {
                    "overrides": list(planned.overrides),
                    "seconds": round(planned.seconds, 1),
                    "plan_key": planned.cell.plan_key,
                    "cell": planned.cell.to_json(),
                }
                for planned in plan.open
                if planned.cell
            ],
        }
        try:
            (record.folder / "cells").mkdir(parents=True)
            _write(record.folder / SWEEP, content)
        except OSError as error:
            raise unwritable(plan.results, error) from error
        return record

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def queue_name(self) -> str:
        return NAME + self.id

    @cached_property
    def events(self) -> EventStream:
        path = None
        with contextlib.suppress(OSError):  # the folder of a sweep that runs may be removed
            path = self.content().get("events")
        return EventStream(Path(path) if path else None, self.id)

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / SWEEP).read_text())
        return content

    def write_note(self, index: int, **note: Any) -> None:
        """Replace the note of a cell."""
        _write(self._path(index), {"at": time.time(), **note})

    def read_note(self, index: int) -> Note:
        """The note of a cell; empty before it begins."""
        try:
            note: Note = json.loads(self._path(index).read_text())
            return note
        except (OSError, ValueError):
            return {}

    def outcome(self, index: int, seen: Note | None = None) -> CellOutcome:
        """How a cell ended, by its note or, where that could not be written, by the one that was
        `seen`."""
        note = self.read_note(index)
        if not has_ended(note):
            note = seen or {}
        if not has_ended(note):
            return CellOutcome(1, "not run", self.problem() or "it has written nothing")
        return CellOutcome(**{name: note[name] for name in CellOutcome.__dataclass_fields__})

    def problem(self) -> str:
        """Why notes and rows may be missing; empty where nothing is known."""
        if not (self.folder / SWEEP).exists():
            return f"{self.folder} was removed while the sweep ran"
        try:
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            return f"{self.folder} can't be written: {error.strerror}"
        return ""

    def begun(self) -> list[int]:
        """Numbers of the cells that have a note, in one listing of the folder."""
        try:
            names = os.listdir(self.folder / "cells")
        except OSError:
            return []
        return sorted(int(name[:-5]) for name in names if name[0] != "." and name.endswith(".json"))

    def _path(self, index: int) -> Path:
        return self.folder / "cells" / f"{index:05}.json"


def new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(2).hex()}"


def sweeps(results: Path) -> Iterator[Record]:
    """The sweeps of a folder of results, oldest first; those of older versions are left out."""
    for path in sorted((results / FOLDER).glob(f"*/{SWEEP}")):
        record = Record(path.parent)
        if all("cell" in cell for cell in record.content()["cells"]):
            yield record


def has_ended(note: Mapping[str, Any]) -> bool:
    return note.get("state") == "ended"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1))


# `events=FILE`: what a command runs, as JSON lines that a tracker can follow while it runs.
#
# Every process of a sweep appends to the same file. A line is one write at the end of it, made
# under a lock: the file holds whole lines, and the rest of one that a killed writer left is removed
# by the next. Each has `schema`, `time` (ISO 8601, UTC), `event`, `sweep` (the `run_id` of its
# rows), and
#
#     sweep_started   cells, done (not run again), to_run, command, launcher, results
#     cell_started    cell (its number, from 0), overrides
#     stage           cell, stage, done, total: when another stage begins
#     row             cell, row_id, status, seconds, and the row's key figures: it has not failed
#     cell_failed     cell, status, reason, row_id where there is a row, seconds
#     cell_refused    cell, reason: a wrong request
#     cell_skipped    cell, reason: it didn't fit the sweep's time
#     sweep_ended     exit_code (null where it was interrupted)
#
# A cell that is refused or skipped before the sweep starts has its overrides in place of a number.

SCHEMA = 1
FIGURES = (
    "method", "task", "model", "length", "device", "dtype", "seed", "metric", "value", "ci_lo",
    "ci_hi", "base_value", "quality_verdict", "lat_median_ns", "lat_ratio",
    "lat_ratio_ci_lo", "lat_ratio_ci_hi", "lat_verdict", "engine_ratio", "mem_ratio",
    "rss_peak_delta_bytes", "gpu_alloc_delta_bytes", "tpot_median_ns", "tpot_ratio",
    "kv_held_ratio", "max_length_fit",
)  # fmt: skip
"""Columns of a row that its event has, where they were measured."""
TAIL_BYTES = 1 << 16
FIRST_BYTES = b'{"schema": '
"""The beginning of a file of events."""


@dataclass
class EventStream:
    """The events of one sweep; none are written where `path` is None. `exit_code` is that of the
    sweep, None while it runs."""

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
                first = os.pread(file, len(FIRST_BYTES), 0) if is_file else b""
        except OSError as error:
            raise RequestError(
                f"events={self.path} can't be written: {error.strerror}; give another file"
            ) from error
        if not is_file:
            raise RequestError(f"events={self.path} is not a file")
        if not FIRST_BYTES.startswith(first):
            raise RequestError(f"events={self.path} holds no events; give a new file")

    def write(self, event: str, **content: Any) -> None:
        """Appends one event. Where that fails, as on a full disk, the run goes on without it."""
        if self.path is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"schema": SCHEMA, "time": now, "event": event, "sweep": self.sweep, **content}
        text = json.dumps(line, ensure_ascii=False, default=str)
        try:
            with _appended(self.path) as file:
                _append_line(file, f"{text}\n".encode(errors="replace"))
        except OSError as error:
            print(f"bench: events={self.path}: {error.strerror}", file=sys.stderr)
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


def _append_line(file: int, line: bytes) -> None:
    """Raises OSError, and then nothing of the line is left."""
    size = os.fstat(file).st_size
    tail = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
    if tail and not tail.endswith(b"\n"):
        size -= len(tail) - (tail.rfind(b"\n") + 1)
        os.ftruncate(file, size)
    if os.write(file, line) < len(line):
        os.ftruncate(file, size)
        raise OSError(28, os.strerror(28))
