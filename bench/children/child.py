"""What every child does alike: read its request, guard its memory, say how far it is, and write
one result. A child is `python -m bench.children MODULE FOLDER DESCRIPTOR`, or the same forked from
a nursery; MODULE has a `measure`.

No torch here: the guards stand before anything heavy is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import system
from bench.errors import RequestError

Measure = Callable[[dict[str, Any], "Report"], dict[str, Any]]


class Report:
    """Tells the parent the stage and how much of it is done, at most once a second, so that
    neither side works while something is timed."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.stage = "load"
        self.last = 0.0
        self("load")

    def __call__(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        now = time.monotonic()
        if stage == self.stage and done < total and now - self.last < 1.0 and self.last:
            return
        self.stage, self.last = stage, now
        with contextlib.suppress(BrokenPipeError):
            os.write(self.descriptor, json.dumps([stage, done, total, note]).encode() + b"\n")


def main() -> None:
    """Run the module named on the command line on the request in the folder named there."""
    module, work, progress = sys.argv[1:]
    run(module, Path(work), int(progress))


def run(module: str, work: Path, progress: int, parent: int | None = None) -> None:
    """Run the `measure` of a module on the request in the folder `work`, and leave the result
    there. `parent` is the process that this one ends with; None: the supervisor."""
    system.die_with_parent()
    request = json.loads((work / "request.json").read_text())
    if os.getppid() != (parent or request["supervisor"]):  # it died before the kernel was told
        sys.exit(1)
    if request["memory_bytes"]:
        # An allocation beyond it fails in this process, long before the machine is in need.
        resource.setrlimit(resource.RLIMIT_DATA, (request["memory_bytes"],) * 2)
    report = Report(progress)
    answer: dict[str, Any]
    try:
        measure: Measure = importlib.import_module(module).measure
        answer = {"status": "ok", "result": measure(request, report)}
    except Exception as error:
        answer = _answer(error)
    if answer["status"] != "ok":
        answer["stage"] = report.stage
    temporary = work / "result.json.part"
    temporary.write_text(json.dumps(answer))
    temporary.rename(work / "result.json")


def _answer(error: Exception) -> dict[str, Any]:
    status = memory_status(error)
    if status:
        # What the failed call holds is needed to say so.
        traceback.clear_frames(error.__traceback__)
    # By its name: importing the class would import torch into a child that has not got so far.
    elif type(error).__name__ == "Unsupported":
        return {"status": "unsupported", "detail": str(error)}
    elif isinstance(error, RequestError):
        return {"status": "request", "detail": str(error)}
    return {"status": status or "error", "detail": _described(error)}


def memory_status(error: BaseException) -> str | None:
    """'oom_host' or 'oom_device' when the error says that memory ran out, else None."""
    if type(error).__name__ == "OutOfMemoryError":
        return "oom_device"
    told = str(error).lower()
    if isinstance(error, MemoryError):
        return "oom_host"
    if isinstance(error, RuntimeError) and (
        "can't allocate memory" in told or "not enough memory" in told
    ):
        return "oom_host"
    return None


def _described(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return f"{type(error).__name__}: {error}\n{''.join(lines[-6:])}".strip()
