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
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.execution import spawn
from bench.execution.spawn import ForkServer
from bench.execution.worker import Channels
from bench.host import linux
from bench.status import Status

Progress = Callable[..., None]
"""Called with the stage, its done and total amounts of work, and sometimes a note to show."""
LAST_LINES = 20
LONGEST_MESSAGE = 64 << 20


@dataclass(frozen=True)
class Outcome:
    """The end of a child: its status, its last stage, the reason or its last lines of output, and
    its result when the status is OK."""

    status: Status
    stage: str
    detail: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    exit_signal: int | None = None
    wall_ns: int = 0


@dataclass(frozen=True)
class Limits:
    """Limits of a child: its deadline by the monotonic clock, the bytes that it may allocate, and
    variables of its environment."""

    deadline: float
    memory_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @classmethod
    def after(cls, seconds: float, **more: Any) -> Limits:
        """Limits of a child that is stopped after some seconds."""
        return cls(time.monotonic() + seconds, **more)


@contextlib.contextmanager
def started(
    module: str,
    request: Mapping[str, Any],
    limits: Limits,
    server: ForkServer | None = None,
    progress: Progress | None = None,
    handlers: Handlers | None = None,
    link: socket.SocketKind = socket.SOCK_STREAM,
) -> Iterator[Running]:
    """A child that runs the `measure` of a module on a request (JSON). It leads a separate process
    group, which is killed at the end of the block. With a `server` the child is a fork of it.
    `handlers` are called with the messages of their kinds; `link` is the kind of the child's
    socket."""
    with contextlib.ExitStack() as opened:
        asked = opened.enter_context(io.FileIO(os.memfd_create("bench"), "r+"))  # needs no disk
        (output, output_end), (messages, messages_end) = (
            map(opened.enter_context, map(io.FileIO, os.pipe(), "rw")) for _ in range(2)
        )
        own, remote = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, link))
        asked.write(json.dumps({**request, "memory_bytes": limits.memory_bytes}).encode())
        asked.seek(0)
        ends = (output_end, messages_end, remote, asked)
        channels = Channels(*(end.fileno() for end in ends))
        child = spawn.start(module, limits.environment, channels, server)
        try:
            for end in (output_end, messages_end, remote):
                end.close()
            pipes = output.fileno(), messages.fileno()
            yield Running(child, pipes, own, limits, progress, handlers or {})
        finally:
            spawn.kill(child)
            child.close()


class Running:
    """A child that runs. `pipes` are the descriptors of its output and of its messages, `link` is
    this process's end of a socket to it. A message is a line of JSON: a list that reports progress,
    or an object that has its `kind`; the child's `answer` is one too."""

    def __init__(
        self,
        child: spawn.Child,
        pipes: tuple[int, int],
        link: socket.socket,
        limits: Limits,
        progress: Progress | None,
        handlers: Handlers,
    ) -> None:
        self.child, self.link, self.limits = child, link, limits
        self.progress, self.handlers = progress, handlers
        self.began = time.monotonic()
        self.kills = _oom_kills()
        self.stage, self.nonsense = "start", ""
        self.answer: Mapping[str, Any] | None = None
        self.tail: collections.deque[bytes] = collections.deque(maxlen=LAST_LINES)
        self.output = pipes[0]
        self.partial = dict.fromkeys(pipes, b"")
        # Wait for the child itself too: a grandchild may keep the pipes open for ever.
        self.selector = selectors.DefaultSelector()
        for descriptor in (*pipes, child.ended):
            self.selector.register(descriptor, selectors.EVENT_READ)
        for descriptor in pipes:
            os.set_blocking(descriptor, False)

    def outcome(self) -> Outcome:
        """Wait for its end, until the deadline. Only the last lines of its output are kept. Raises
        RequestError when the child has raised one."""
        in_time = self._until_ended()
        wall_ns = int((time.monotonic() - self.began) * 1e9)
        if not in_time:
            after = self.limits.deadline - self.began
            detail = f"still in stage {self.stage} after {after:.0f} s"
            return Outcome(Status.TIMEOUT, self.stage, detail, wall_ns=wall_ns)
        code, answer = self.child.wait(), self.answer
        if self.nonsense:
            return Outcome(Status.ERROR, self.stage, self.nonsense, wall_ns=wall_ns)
        if code == 0 and answer is not None:
            if "request_error" in answer:
                raise RequestError(answer["request_error"])
            return Outcome(
                Status(answer["status"]), answer.get("stage", self.stage), answer.get("detail"),
                answer.get("result", {}), wall_ns=wall_ns,
            )  # fmt: skip
        status, exit_signal = Status.ERROR, None
        reason = f"exit code {code} without a result"
        if code < 0:
            exit_signal = -code
            reason = f"killed by {signal.Signals(exit_signal).name}"
            if exit_signal == signal.SIGKILL and _oom_kills() > self.kills:
                status, reason = Status.OOM_HOST, "killed by the kernel, out of memory"
        lines = (line.decode(errors="replace") for line in self.tail)
        detail = "\n".join([reason, *lines]).strip()
        return Outcome(status, self.stage, detail, {}, exit_signal, wall_ns)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the child, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)

    def _until_ended(self) -> bool:
        """Read its output and its messages; False at the deadline."""
        ended, deadline = self.child.ended, self.limits.deadline
        with self.selector:
            while True:
                ready = {key.fd for key, _ in self.selector.select(deadline - time.monotonic())}
                for descriptor in ready & self.partial.keys():
                    if not self._read(descriptor):
                        self.selector.unregister(descriptor)
                if ended in ready:
                    for descriptor in self.partial:
                        while self._read(descriptor):
                            pass
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
        most = 4096 if descriptor == self.output else LONGEST_MESSAGE
        self.partial[descriptor] = lines.pop()[-most:]
        if not chunk and self.partial[descriptor]:
            lines.append(self.partial[descriptor])
        for line in lines:
            if descriptor == self.output:
                self.tail.append(line[-500:])
            else:
                self._take(line)
        return bool(chunk)

    def _take(self, line: bytes) -> None:
        """Report progress, or give a message to its handler. A child that sends nonsense is
        killed."""
        try:
            message = json.loads(line)
            if isinstance(message, dict):
                kind = str(message["kind"])
            else:
                self.stage, done, total, *note = message
        except (ValueError, TypeError, KeyError):
            return
        if not isinstance(message, dict):
            if self.progress:
                self.progress(self.stage, done, total, *filter(None, note))
        elif kind == "answer":
            self.answer = message
        elif kind in self.handlers:
            try:
                self.handlers[kind](self, message)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                what = f"{type(error).__name__}: {error}"
                self.nonsense = f"sent a message that can't be read: {what}"
                self.send_signal(signal.SIGKILL)  # unless it has ended meanwhile


Handlers = Mapping[str, Callable[[Running, Mapping[str, Any]], None]]
"""Called with the child and a message of a kind, while the child continues."""


def _oom_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory since boot."""
    return linux.first_int(linux.line(Path("/proc/vmstat"), "oom_kill ").split()) or 0
