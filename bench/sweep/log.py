"""The log of a sweep: the state of its cells in its folder RESULTS/.sweeps/ID, and its events.

The process that runs a cell (this one, a worker, a job on a cluster) writes one small file for it,
atomically; processes that watch the sweep read these files. Rows go to the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.errors import RequestError
from bench.execution.runner import unwritable
from bench.files import replacing
from bench.rows.row_facts import engine_only, longest_input
from bench.status import PlanState, Status
from bench.units import finite, score_digits

if TYPE_CHECKING:
    from bench.sweep.plan import Plan

FOLDER = ".sweeps"
SWEEP = "sweep.json"
NAME = "bench-"
"""Prefix of the name that a sweep's jobs have in a queue; its id follows."""

Note = dict[str, Any]
"""The last note on a cell: its `state`, and its CellOutcome once that is `ended`."""
Listener = Callable[[int, Note], None]
"""Called with the number of a cell and its new note."""


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of one cell of a sweep: exit code, status, the reason, the row's id, its main
    figures as text and its key figures by column."""

    code: int
    status: str
    reason: str = ""
    row_id: str | None = None
    figures: str = ""
    seconds: float = 0.0
    measured: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any], seconds: float = 0.0) -> Self:
        """The outcome of a row's cell."""
        values = {name: finite(row.get(name)) for name in FIGURES}
        measured = {name: value for name, value in values.items() if value is not None}
        return cls(
            Status(row["status"]).exit_code, row["status"], row.get("status_detail") or "",
            row["row_id"], _figures(row), seconds, measured,
        )  # fmt: skip


def _figures(row: Mapping[str, Any]) -> str:
    """The main figures of a row in one line."""
    parts = []
    if row.get("value") is not None:
        digits = score_digits(row["higher_is_better"])
        parts.append(f"{row['metric']} {row['value']:.{digits}f}")
    if row.get("lat_ratio") is not None:
        parts.append(f"×{row['lat_ratio']:.3f} {row['lat_verdict']} {engine_only(row)}".rstrip())
    if row.get("mem_ratio") is not None:
        parts.append(f"memory ×{row['mem_ratio']:.2f}")
    if longest := longest_input(row):
        parts.append(f"fits {longest}")
    return " · ".join(parts)


@dataclass(frozen=True)
class Record:
    """The folder of one sweep; `content` describes the sweep, `own` has the notes that this process
    wrote or got, also those for which the folder had no room."""

    folder: Path
    content: dict[str, Any]
    listener: Listener | None = None
    own: dict[int, Note] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Record:
        return cls(folder, json.loads((folder / SWEEP).read_text()))

    @classmethod
    def begin(
        cls, plan: Plan, command: str, name: str = "", listener: Listener | None = None
    ) -> Record:
        """A new folder with the open cells of a plan, named by `new_id`. Raises RequestError if it
        can't be made."""
        started = time.time()
        content: dict[str, Any] = {
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
                    # With the plan's threads, so that it is the same cell on another machine.
                    "request": {**planned.request, "threads": planned.cell.threads},
                    "seconds": round(planned.seconds, 1),
                    "plan_key": planned.cell.plan_key,
                    "cell": planned.cell.to_json(),
                }
                for planned in plan.open
                if planned.cell
            ],
            "jobs": {},
        }
        folder = plan.results / FOLDER / (name or new_id())
        try:
            (folder / "cells").mkdir(parents=True)
            _write(folder / SWEEP, content)
        except OSError as error:
            raise unwritable(plan.results, error) from error
        return cls(folder, content, listener)

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def queue_name(self) -> str:
        return NAME + self.id

    @cached_property
    def events(self) -> EventStream:
        path = self.content.get("events")
        return EventStream(Path(path) if path else None, self.id)

    def submitted(self, job_ids: Mapping[int, str]) -> None:
        """Adds the ids of jobs in a queue, by the numbers of their cells."""
        self.content["jobs"] |= {str(i): job_id for i, job_id in job_ids.items()}
        with contextlib.suppress(OSError):
            _write(self.folder / SWEEP, self.content)

    def write_note(self, index: int, **note: Any) -> None:
        """Replace the note of a cell. A full disk doesn't end the cell: its row may still fit."""
        self.own[index] = {"at": time.time(), **note}
        with contextlib.suppress(OSError):
            _write(self._path(index), self.own[index])
        if self.listener:
            self.listener(index, self.own[index])

    def read_note(self, index: int) -> Note:
        """The note of a cell; empty before it begins."""
        note: Note = self.own.get(index, {})
        if not note:
            with contextlib.suppress(OSError, ValueError):
                note = json.loads(self._path(index).read_text())
        return note

    def reach(self, index: int, process: Note, stage: str, done: int, total: int) -> None:
        """Writes the progress of a cell; `process` is the constant part of its note."""
        self.events.stage(index, stage, done, total)
        self.write_note(index, **process, state="running", stage=[stage, done, total])

    def end(self, index: int, process: Note, outcome: CellOutcome) -> None:
        """Writes the outcome of a cell."""
        self.events.end(index, outcome)
        self.write_note(index, **{**process, "state": "ended", **asdict(outcome)})

    def outcome(self, index: int) -> CellOutcome:
        """The outcome of a cell, from its note."""
        note = self.read_note(index)
        if not has_ended(note):
            return CellOutcome(1, "not run", "it has written nothing")
        return CellOutcome(**{name: note[name] for name in CellOutcome.__dataclass_fields__})

    def begun(self) -> list[int]:
        """Numbers of the cells that have a note, by one listing of the folder."""
        return sorted(int(path.stem) for path in (self.folder / "cells").glob("[0-9]*.json"))

    def _path(self, index: int) -> Path:
        return self.folder / "cells" / f"{index:05}.json"


def new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(2).hex()}"


def sweeps(results: Path) -> Iterator[Record]:
    """The sweeps of a folder of results, oldest first; those of older versions are left out."""
    for path in sorted((results / FOLDER).glob(f"*/{SWEEP}")):
        record = Record.read(path.parent)
        if all("cell" in cell for cell in record.content["cells"]):
            yield record


def has_ended(note: Mapping[str, Any]) -> bool:
    return note.get("state") == "ended"


def stage_of(note: Mapping[str, Any]) -> str:
    """The current stage of a running cell, with its progress."""
    stage, done, total = note.get("stage") or ("starts", 0, 0)
    return f"{stage} {done:,}/{total:,}" if total else str(stage)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1))


# `events=FILE`: the events of a command, as JSON lines that a tracker can follow while it runs.
#
# Every process of a sweep appends to the same file. A line is one write at its end, made under a
# lock: the file holds complete lines, and the next writer removes the part of a line that a killed
# writer left. docs/events.md lists the events and their fields.

SCHEMA = 1
FIGURES = (
    "method", "task", "model", "length", "device", "dtype", "seed", "metric", "value", "ci_lo",
    "ci_hi", "base_value", "quality_verdict", "lat_median_ns", "lat_ratio",
    "lat_ratio_ci_lo", "lat_ratio_ci_hi", "lat_verdict", "engine_ratio", "mem_ratio",
    "rss_peak_delta_bytes", "gpu_alloc_delta_bytes", "tpot_median_ns", "tpot_ratio",
    "kv_held_ratio", "max_length_fit",
)  # fmt: skip
"""Columns of a row that its event contains if they were measured."""
TAIL_BYTES = 1 << 16
FIRST_BYTES = b'{"schema": '
"""The beginning of a file of events."""


@dataclass
class EventStream:
    """The events of one sweep; none are written if `path` is None. `exit_code` is the exit code of
    the sweep; None while it runs."""

    path: Path | None
    sweep: str
    stages: dict[int, str] = field(default_factory=dict)
    exit_code: int | None = None

    def check_writable(self) -> None:
        """Makes the file if there is none. Raises RequestError if it can't be written, or has other
        content."""
        if self.path is None:
            return
        try:
            if self.path.exists() and not self.path.is_file():
                raise OSError(0, "it is not a file")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                file.seek(0)
                first = file.read(len(FIRST_BYTES))
        except OSError as error:
            raise RequestError(
                f"events={self.path} can't be written: {error.strerror}; give another file"
            ) from error
        if not FIRST_BYTES.startswith(first):
            raise RequestError(f"events={self.path} holds no events; give a new file")

    def write(self, event: str, **content: Any) -> None:
        """Appends one event. If that fails, as on a full disk, the run continues without it."""
        if self.path is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"schema": SCHEMA, "time": now, "event": event, "sweep": self.sweep, **content}
        text = json.dumps(line, ensure_ascii=False, default=str)
        try:
            _append_line(self.path, f"{text}\n".encode(errors="replace"))
        except OSError as error:
            print(f"bench: events={self.path}: {error.strerror}", file=sys.stderr)
            self.path = None

    @contextlib.contextmanager
    def around(self, **content: Any) -> Iterator[None]:
        """Writes the event of the start of a sweep, and at the end of the block that of its end."""
        self.write("sweep_started", **content)
        try:
            yield
        except Exception as error:
            self.exit_code = 2 if isinstance(error, RequestError) else 1
            raise
        finally:
            self.write("sweep_ended", exit_code=self.exit_code)

    @contextlib.contextmanager
    def one_cell(self, overrides: Sequence[str], **content: Any) -> Iterator[None]:
        """The events of a command that runs one cell; the caller writes the event of its end."""
        with self.around(cells=1, done=0, to_run=1, **content):
            self.write("cell_started", cell=0, overrides=overrides)
            try:
                yield
            except Exception as error:
                refused = isinstance(error, RequestError)
                status = PlanState.REFUSED if refused else Status.ERROR
                self.end(0, CellOutcome(2 if refused else 1, status, str(error)))
                raise

    def stage(self, cell: int, stage: str, done: int, total: int) -> None:
        """Writes an event if the stage differs from the cell's last one."""
        if self.stages.get(cell) != stage:
            self.stages[cell] = stage
            self.write("stage", cell=cell, stage=stage, done=done, total=total)

    def end(self, cell: int, outcome: CellOutcome) -> None:
        """Writes the one event with which a cell ends."""
        event = "cell_refused" if outcome.code == 2 else "cell_failed" if outcome.code else "row"
        if outcome.status == PlanState.OVER_BUDGET:
            event = "cell_skipped"
        known = {"status": outcome.status, "reason": outcome.reason, "row_id": outcome.row_id}
        known = {name: value for name, value in known.items() if value}
        self.write(event, cell=cell, **known, seconds=round(outcome.seconds, 3), **outcome.measured)


def _append_line(path: Path, line: bytes) -> None:
    """Appends to a file, locked if the file system has locks, after removing an incomplete line of
    a killed writer. Raises OSError, and then no part of the line is left."""
    with path.open("ab+", buffering=0) as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            size -= len(tail) - (tail.rfind(b"\n") + 1)
            file.truncate(size)
        if file.write(line) < len(line):
            file.truncate(size)
            raise OSError(28, os.strerror(28))
