"""One child process for each measurement: deadline, memory guard, exit → status. No torch here.

The parent sleeps in select(): a parent that spins slows the child it times by half and more.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.plugins import ROOT

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
) -> Outcome:
    """Run the `measure` of a module in a child, on a request (JSON), and wait for its end.

    The child leads a process group of its own, which is killed at the deadline or on Ctrl-C.
    Its output is read as it comes and only the last lines are kept.
    """
    began = time.monotonic()
    kills = _oom_kills()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        work = Path(folder)
        told, tell = os.pipe()
        content = {
            **request,
            "memory_bytes": memory_bytes,
            "progress_fd": tell,
            "parent": os.getpid(),
        }
        (work / "request.json").write_text(json.dumps(content))
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.children", module, str(work)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            pass_fds=[tell],
            start_new_session=True,
        )
        os.close(tell)
        assert child.stdout is not None
        watch = _Watch(child, told, progress)
        try:
            in_time = watch.until_ended(began + deadline_s)
            if in_time:
                child.wait()
        finally:
            _kill(child)
            child.stdout.close()
            os.close(told)
        wall_ns = int((time.monotonic() - began) * 1e9)
        if not in_time:
            detail = f"still in stage {watch.stage} after {deadline_s:.0f} s"
            return Outcome("timeout", watch.stage, detail, wall_ns=wall_ns)
        return _outcome(child.returncode, work, watch, wall_ns, _oom_kills() > kills)


class _Watch:
    """Reads a child's output and its progress messages until it ends."""

    def __init__(self, child: subprocess.Popen[bytes], told: int, progress: Progress | None):
        assert child.stdout is not None
        self.stage = "start"
        self.progress = progress
        self.tail: collections.deque[bytes] = collections.deque(maxlen=LAST_LINES)
        self.output = child.stdout.fileno()
        self.partial = {self.output: b"", told: b""}
        self.selector = selectors.DefaultSelector()
        for descriptor in self.partial:
            os.set_blocking(descriptor, False)
            self.selector.register(descriptor, selectors.EVENT_READ)
        # The end of the child itself: a grandchild may hold the pipes open for ever.
        self.ended = os.pidfd_open(child.pid)
        self.selector.register(self.ended, selectors.EVENT_READ)

    def until_ended(self, deadline: float) -> bool:
        """True when the child ended before the deadline (monotonic seconds)."""
        try:
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
        finally:
            os.close(self.ended)

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


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the whole process group; what has ended already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _oom_kills() -> int:
    """How often the kernel has killed for memory since boot."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
