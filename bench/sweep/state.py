"""A sweep's own folder, RESULTS/.sweeps/ID: what was planned, and how far each cell is.

The process that runs a cell (this one, a worker, a job on a cluster) writes one small file for it,
atomically; processes that watch the sweep read these files. Rows go to the store.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.execution.runner import unwritable
from bench.files import replacing
from bench.sweep.events import EventStream
from bench.sweep.planned import Plan

FOLDER = ".sweeps"
SWEEP = "sweep.json"
EVENTS = "events"
"""A file that names the one that the sweep's events go to, where there is one."""
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
            "until": started + plan.budget_s if plan.budget_s else None,
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
            if plan.events:
                (record.folder / EVENTS).write_text(str(plan.events))
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
        try:
            return EventStream(Path((self.folder / EVENTS).read_text()), self.id)
        except OSError:
            return EventStream(None, self.id)

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
