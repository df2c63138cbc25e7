"""One child process for each measurement: deadline, memory guard, exit → status. No torch here.

The parent sleeps in select(): a parent that spins slows the child it times by half and more.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import spawn

Progress = Callable[..., None]
"""Told the stage, how much of it is done, of how much, and where there is one a note beside it."""
LAST_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """How a child ended: `status` ∈ {ok, oom_host, oom_device, timeout, error, unsupported,
    request}, the stage it was in, the reason or its last lines, and its result when ok."""

    status: str
    stage: str
    detail: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    exit_signal: int | None = None
    wall_ns: int = 0


def supervise(
    module: str,
    request: Mapping[str, Any],
    *,
    deadline_s: float,
    memory_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    preloaded: bool = False,
) -> Outcome:
    """Run the `measure` of a module in a child, on a request (JSON), and wait for its end.

    The child leads a process group of its own, which is killed at the deadline or on Ctrl-C.
    Its output is read as it comes and only the last lines are kept. `preloaded`: it is forked from
    a process that has imported torch (bench.spawn), which a child that uses a GPU can't be.
    """
    began = time.monotonic()
    kills = _oom_kills()
    with contextlib.ExitStack() as opened:
        work = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        output, write, told, tell = (opened.enter_context(end) for end in (*_pipe(), *_pipe()))
        content = {**request, "memory_bytes": memory_bytes, "supervisor": os.getpid()}
        (work / "request.json").write_text(json.dumps(content))
        child = spawn.start(
            module, work, environment or {}, write.fileno(), tell.fileno(), preloaded
        )
        try:
            write.close()
            tell.close()
            watch = _Watch(child.ended, output.fileno(), told.fileno(), progress)
            in_time = watch.until_ended(began + deadline_s)
            code = child.wait() if in_time else 0
        finally:
            spawn.kill(child)
            child.close()
        wall_ns = int((time.monotonic() - began) * 1e9)
        if not in_time:
            detail = f"still in stage {watch.stage} after {deadline_s:.0f} s"
            return Outcome("timeout", watch.stage, detail, wall_ns=wall_ns)
        return _outcome(code, work, watch, wall_ns, _oom_kills() > kills)


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    read, write = os.pipe()
    return io.FileIO(read, "r"), io.FileIO(write, "w")


class _Watch:
    """Reads a child's output and its progress messages until it ends."""

    def __init__(self, ended: int, output: int, told: int, progress: Progress | None):
        self.stage = "start"
        self.progress = progress
        self.tail: collections.deque[bytes] = collections.deque(maxlen=LAST_LINES)
        self.output = output
        self.partial = {self.output: b"", told: b""}
        self.selector = selectors.DefaultSelector()
        for descriptor in self.partial:
            os.set_blocking(descriptor, False)
            self.selector.register(descriptor, selectors.EVENT_READ)
        # The end of the child itself: a grandchild may hold the pipes open for ever.
        self.ended = ended
        self.selector.register(self.ended, selectors.EVENT_READ)

    def until_ended(self, deadline: float) -> bool:
        """True when the child ended before the deadline (monotonic seconds)."""
        with self.selector:
            while True:
                ready = {key.fd for key, _ in self.selector.select(deadline - time.monotonic())}
                for descriptor in ready & self.partial.keys():
                    if not self._read(descriptor):
                        self.selector.unregister(descriptor)
                if self.ended in ready:
                    for descriptor in self.partial:
                        while self._read(descriptor):
                            pass
                    return True
                if time.monotonic() >= deadline:
                    return False

    def _read(self, descriptor: int) -> bool:
        """Take what is there; False when there is no more, or none for now."""
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        lines = (self.partial[descriptor] + chunk).split(b"\n")
        # A line without an end must not grow in the parent's memory.
        self.partial[descriptor] = lines.pop()[-4096:]
        if not chunk and self.partial[descriptor]:
            lines.append(self.partial[descriptor])
        for line in lines:
            if descriptor == self.output:
                self.tail.append(line[-500:])
            else:
                self._hear(line)
        return bool(chunk)

    def _hear(self, line: bytes) -> None:
        try:
            self.stage, done, total, *note = json.loads(line)
        except ValueError:
            return
        if self.progress:
            self.progress(self.stage, done, total, *filter(None, note))

    @property
    def last_lines(self) -> str:
        return "\n".join(line.decode(errors="replace") for line in self.tail).strip()


def _outcome(code: int, work: Path, watch: _Watch, wall_ns: int, kernel_killed: bool) -> Outcome:
    """Exit code and the child's own word → status."""
    path = work / "result.json"
    if code == 0 and path.is_file():
        said = json.loads(path.read_text())
        stage = said.get("stage", watch.stage)
        return Outcome(
            said["status"], stage, said.get("detail"), said.get("result", {}), None, wall_ns
        )
    if code < 0:
        name = signal.Signals(-code).name
        status = "oom_host" if -code == signal.SIGKILL and kernel_killed else "error"
        by = "the kernel, out of memory" if status == "oom_host" else name
        detail = f"killed by {by}\n{watch.last_lines}".strip()
        return Outcome(status, watch.stage, detail, {}, -code, wall_ns)
    detail = f"exit code {code} without a result\n{watch.last_lines}".strip()
    return Outcome("error", watch.stage, detail, {}, None, wall_ns)


def _oom_kills() -> int:
    """How often the kernel has killed for memory since boot."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
