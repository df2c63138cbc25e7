"""Run one measurement in a child process: deadline, memory limit, exit code → status. Imports no
torch.

The parent sleeps in select(): a parent that polls slows the child it times by half or more.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.execution import spawn
from bench.execution.channels import Channels
from bench.execution.claimed_time import ClaimedTime
from bench.host import linux
from bench.status import Status

Progress = Callable[..., None]
"""Called with the stage, how much of it is done, of how much, and sometimes a note to show."""
LAST_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its status, the stage it was in, the reason or its last lines of output,
    and its result when the status is OK."""

    status: Status
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
    preload: Sequence[str] = (),
) -> Outcome:
    """Run the `measure` of a module in a child, on a request (JSON), and wait for its end.

    The child leads a process group of its own, which is killed at the deadline or on Ctrl-C. Only
    the last lines of its output are kept. With `preload` the child is forked from a process that
    has imported these modules. Raises RequestError when the child did.
    """
    began = time.monotonic()
    kills = _oom_kills()
    with contextlib.ExitStack() as opened:
        asked, answer = (opened.enter_context(_memory_file(name)) for name in ("asked", "answer"))
        (output, output_end), (messages, messages_end) = (
            (opened.enter_context(read), opened.enter_context(write))
            for read, write in (_pipe(), _pipe())
        )
        claims = opened.enter_context(ClaimedTime())
        asked.write(json.dumps({**request, "memory_bytes": memory_bytes}).encode())
        asked.seek(0)
        ends = (output_end, messages_end, claims.child_end, asked, answer)
        channels = Channels(*(end.fileno() for end in ends))
        child = spawn.start(module, environment or {}, channels, preload)
        claims.child = child.pid
        try:
            output_end.close()
            messages_end.close()
            watch = _Watch(child.ended, output.fileno(), messages.fileno(), claims, progress)
            in_time = watch.until_ended(began + deadline_s)
            code = child.wait() if in_time else 0
        finally:
            spawn.kill(child)
            child.close()
        wall_ns = int((time.monotonic() - began) * 1e9)
        if not in_time:
            detail = f"still in stage {watch.stage} after {deadline_s:.0f} s"
            return Outcome(Status.TIMEOUT, watch.stage, detail, wall_ns=wall_ns)
        answer.seek(0)
        return _outcome(code, answer.read(), watch, wall_ns, _oom_kills() > kills)


def _memory_file(name: str) -> io.FileIO:
    """A file that needs no disk."""
    return io.FileIO(os.memfd_create(f"bench-{name}"), "r+")


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    read, write = os.pipe()
    return io.FileIO(read, "r"), io.FileIO(write, "w")


class _Watch:
    """Reads a child's output and its progress messages until the child ends."""

    def __init__(
        self,
        ended: int,
        output: int,
        messages: int,
        claims: ClaimedTime,
        progress: Progress | None,
    ):
        self.stage = "start"
        self.claims = claims
        self.progress = progress
        self.tail: collections.deque[bytes] = collections.deque(maxlen=LAST_LINES)
        self.output = output
        self.partial = {self.output: b"", messages: b""}
        self.selector = selectors.DefaultSelector()
        for descriptor in self.partial:
            os.set_blocking(descriptor, False)
            self.selector.register(descriptor, selectors.EVENT_READ)
        # Wait for the child itself: a grandchild may keep the pipes open for ever.
        self.ended = ended
        self.selector.register(ended, selectors.EVENT_READ)

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
                    self.claims.receive()
                    return True
                if time.monotonic() >= deadline:
                    return False

    def _read(self, descriptor: int) -> bool:
        """Read what is available; False at the end of the pipe, or when there is nothing."""
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        lines = (self.partial[descriptor] + chunk).split(b"\n")
        # Only the end of a line that never ends is kept in memory.
        self.partial[descriptor] = lines.pop()[-4096:]
        if not chunk and self.partial[descriptor]:
            lines.append(self.partial[descriptor])
        for line in lines:
            if descriptor == self.output:
                self.tail.append(line[-500:])
            else:
                self._handle_message(line)
        return bool(chunk)

    def _handle_message(self, line: bytes) -> None:
        try:
            self.stage, done, total, *note = json.loads(line)
        except ValueError:
            return
        self.claims.receive()
        if self.progress:
            self.progress(self.stage, done, total, *filter(None, note))


def _outcome(
    code: int, written: bytes, watch: _Watch, wall_ns: int, kernel_killed: bool
) -> Outcome:
    if code == 0 and written:
        answer = json.loads(written)
        if "request_error" in answer:
            raise RequestError(answer["request_error"])
        found = watch.claims.disagreement() if answer["status"] == Status.OK else None
        if found and not found.excused:
            detail = f"IntegrityError: integrity check failed: {found.text}"
            return Outcome(Status.ERROR, watch.stage, detail, wall_ns=wall_ns)
        if found and not answer["result"].get("ratio_reason"):
            answer["result"]["ratio_reason"] = found.text
        return Outcome(
            Status(answer["status"]), answer.get("stage", watch.stage), answer.get("detail"),
            answer.get("result", {}), wall_ns=wall_ns,
        )  # fmt: skip
    status, exit_signal = Status.ERROR, None
    reason = f"exit code {code} without a result"
    if code < 0:
        exit_signal = -code
        reason = f"killed by {signal.Signals(exit_signal).name}"
        if exit_signal == signal.SIGKILL and kernel_killed:
            status, reason = Status.OOM_HOST, "killed by the kernel, out of memory"
    detail = "\n".join([reason, *(line.decode(errors="replace") for line in watch.tail)]).strip()
    return Outcome(status, watch.stage, detail, {}, exit_signal, wall_ns)


def _oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot."""
    return linux.first_int(linux.line(Path("/proc/vmstat"), "oom_kill ").split()) or 0
