"""A sweep's own folder, RESULTS/.sweeps/ID: what was planned, and how far each cell is.

Whoever runs a cell (this process, a worker, a node of a cluster) writes one small file of its own,
whole or not at all; whoever watches reads them. Rows are in the store; this is only the way there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.plan import Plan
from bench.runner import unwritable

FOLDER = ".sweeps"
NAME = "bench-"
"""What a sweep's jobs are called in a queue, before its id."""

Note = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The folder of one sweep."""

    folder: Path

    @classmethod
    def begin(cls, plan: Plan, command: str) -> Record:
        """A new folder with what `plan` leaves to do. Raises RequestError when results can't be
        written there."""
        started = time.time()
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(2).hex()}"
        record = cls(plan.results / FOLDER / name)
        until = started + plan.budget_s if plan.budget_s else None
        content = {
            "id": name,
            "command": command,
            "launcher": plan.launcher_name,
            "engine": plan.engine,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": started,
            "until": until,
            "fixed": list(plan.fixed),
            "cells": [
                {
                    "words": list(p.words),
                    "seconds": round(p.seconds, 1),
                    "sketch": p.cell.sketch if p.cell else None,
                    "threads": p.cell.threads if p.cell else None,
                }
                for p in plan.open
            ],
        }
        try:
            (record.folder / "cells").mkdir(parents=True)
            _write(record.folder / "sweep.json", content)
        except OSError as error:
            raise unwritable(plan.results, error) from error
        return record

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def queue_name(self) -> str:
        return NAME + self.id

    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "sweep.json").read_text())
        return found

    def note(self, index: int, **more: Any) -> None:
        """Write what is known of a cell now."""
        _write(self._path(index), {"at": time.time(), **more})

    def read(self, index: int) -> Note:
        """What was last written of a cell; empty before it begins."""
        try:
            found: Note = json.loads(self._path(index).read_text())
            return found
        except (OSError, ValueError):
            return {}

    def begun(self) -> list[int]:
        """Numbers of the cells of which something was written, from one look at the folder."""
        names = (entry.name for entry in os.scandir(self.folder / "cells"))
        return sorted(int(name[:-5]) for name in names if name[0] != "." and name.endswith(".json"))

    def _path(self, index: int) -> Path:
        return self.folder / "cells" / f"{index:05}.json"


def sweeps(results: Path) -> Iterator[Record]:
    """The sweeps of a folder of results, oldest first."""
    for path in sorted((results / FOLDER).glob("*/sweep.json")):
        yield Record(path.parent)


def ended(note: Mapping[str, Any]) -> bool:
    return note.get("state") == "ended"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1))
    os.replace(temporary, path)
