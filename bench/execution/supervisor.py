"""Run one measurement in a child process: deadline, memory limit, exit code → status. Imports no
torch.

The parent sleeps in select(): a parent that polls slows the child it times by half or more.
"""

from __future__ import annotations

import collections
import contextlib
import functools
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
from bench.execution.channels import Channels
from bench.execution.spawn import ForkServer
from bench.host import linux
from bench.status import Status

Progress = Callable[..., None]
"""Called with the stage, how much of it is done, of how much, and sometimes a note to show."""
LAST_LINES = 20
LONGEST_MESSAGE = 64 << 20


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
    server: ForkServer | None = None,
    handlers: Handlers | None = None,
) -> Outcome:
    """Run the `measure` of a module in a child, on a request (JSON), and wait for its end.

    The child leads a separate process group, which is killed at the deadline or on Ctrl-C. Only
    the last lines of its output are kept. With a `server` the child is a fork of it. `handlers` are
    called with the messages of their kinds. Raises RequestError when the child did.
    """
    limits = Limits(time.monotonic() + deadline_s, memory_bytes, environment or {})
    with started(module, request, limits, server, progress, handlers) as running:
        return running.outcome()


@dataclass(frozen=True)
class Limits:
    """Of a child: when it is stopped, by the monotonic clock, what it may allocate, and variables
    of its environment."""

    deadline: float
    memory_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


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
    """A running child, as `supervise` starts it; it is killed at the end of the block. `link` is
    the kind of the socket to it."""
    with contextlib.ExitStack() as opened:
        asked, answer = (  # files that need no disk
            opened.enter_context(io.FileIO(os.memfd_create(f"bench-{name}"), "r+"))
            for name in ("asked", "answer")
        )
        (output, output_end), (messages, messages_end) = (
            (opened.enter_context(read), opened.enter_context(write))
            for read, write in (_pipe(), _pipe())
        )
        own, remote = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, link))
        asked.write(json.dumps({**request, "memory_bytes": limits.memory_bytes}).encode())
        asked.seek(0)
        ends = (output_end, messages_end, remote, asked, answer)
        channels = Channels(*(end.fileno() for end in ends))
        child = spawn.start(module, limits.environment, channels, server)
        try:
            for end in (output_end, messages_end, remote):
                end.close()
            watch = _Watch(child.ended, output.fileno(), messages.fileno(), progress)
            running = Running(child, watch, own, answer, limits)
            watch.handlers = {
                kind: functools.partial(running.handle, handle)
                for kind, handle in (handlers or {}).items()
            }
            yield running
        finally:
            spawn.kill(child)
            child.close()


class Running:
    """A child that runs. `link` is this process's end of a socket to it."""

    def __init__(
        self, child: spawn.Child, watch: _Watch, link: socket.socket, answer: io.FileIO,
        limits: Limits,
    ) -> None:  # fmt: skip
        self.child, self.watch, self.link, self.limits = child, watch, link, limits
        self.answer = answer
        self.began = time.monotonic()
        self.kills = _oom_kills()
        self.nonsense = ""

    def outcome(self) -> Outcome:
        """Wait for its end, until the deadline. Raises RequestError when it did."""
        in_time = self.watch.until_ended(self.limits.deadline)
        wall_ns = int((time.monotonic() - self.began) * 1e9)
        if not in_time:
            after = self.limits.deadline - self.began
            detail = f"still in stage {self.watch.stage} after {after:.0f} s"
            return Outcome(Status.TIMEOUT, self.watch.stage, detail, wall_ns=wall_ns)
        code = self.child.wait()
        if self.nonsense:
            return Outcome(Status.ERROR, self.watch.stage, self.nonsense, wall_ns=wall_ns)
        return _outcome(code, self.written(), self.watch, wall_ns, _oom_kills() > self.kills)

    def handle(
        self, handler: Callable[[Running, Mapping[str, Any]], None], message: Mapping[str, Any]
    ) -> None:
        """Give a message to its handler. A child that sends nonsense is killed."""
        try:
            handler(self, message)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self.nonsense = f"sent a message that can't be read: {type(error).__name__}: {error}"
            self.send_signal(signal.SIGKILL)  # unless it has ended meanwhile

    def written(self) -> bytes:
        """Its result, as far as it has been written."""
        self.answer.seek(0)
        return self.answer.read()

    def send_signal(self, number: signal.Signals) -> None:
        """To all its processes, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)


Handlers = Mapping[str, Callable[[Running, Mapping[str, Any]], None]]
"""Called with the child and a message of a kind, while the child goes on."""


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    read, write = os.pipe()
    return io.FileIO(read, "r"), io.FileIO(write, "w")


class _Watch:
    """Reads a child's output and its messages until the child ends. A message is a line of JSON: a
    list that reports progress, or an object that has its `kind`."""

    def __init__(self, ended: int, output: int, messages: int, progress: Progress | None):
        self.stage = "start"
        self.progress = progress
        self.handlers: Mapping[str, Callable[[Mapping[str, Any]], None]] = {}
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
        """False at the deadline."""
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
                self._handle_message(line)
        return bool(chunk)

    def _handle_message(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if isinstance(message, dict):
                handle = self.handlers.get(message["kind"])
            else:
                self.stage, done, total, *note = message
        except (ValueError, TypeError, KeyError):
            return
        if isinstance(message, dict):
            if handle:
                handle(message)
        elif self.progress:
            self.progress(self.stage, done, total, *filter(None, note))


def _outcome(
    code: int, written: bytes, watch: _Watch, wall_ns: int, kernel_killed: bool
) -> Outcome:
    if code == 0 and written:
        answer = json.loads(written)
        if "request_error" in answer:
            raise RequestError(answer["request_error"])
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
