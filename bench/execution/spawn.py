"""Start processes: a child in a fresh interpreter, one forked from a fork server, or a fork of this
process for work whose memory should not stay here.

A fork server has imported torch and the modules that children need; in a fresh interpreter this
takes seconds. It never starts CUDA, which can't be used after a fork; if an import has started it,
the children become fresh interpreters.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from bench.execution.worker import Channels
from bench.host import host, linux
from bench.request.plugins import ROOT
from bench.rows.shards import StoreError

READ_AT_STARTUP = ("PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD", "LD_LIBRARY_PATH")
T = TypeVar("T")


class SubprocessChild:
    """A child in a fresh interpreter, the leader of its process group. The descriptor `ended` is
    readable once it has ended."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self.wait = process.wait
        self.pid = process.pid
        self.ended = os.pidfd_open(self.pid)

    @property
    def running(self) -> bool:
        return not select.select([self.ended], [], [], 0)[0]

    def close(self) -> None:
        os.close(self.ended)


class ForkedChild:
    """A child that a fork server forks, otherwise like a SubprocessChild."""

    def __init__(self, server: ForkServer, content: object, channels: Channels):
        self.server = server
        self.code: int | None = None
        self.reply, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote:
            descriptors = [remote.fileno(), *channels]
            socket.send_fds(server.link, [json.dumps(content).encode()], descriptors)
        self.pid = int(self._receive())
        self.ended = self.reply.fileno()

    def _receive(self) -> bytes:
        """The server's next message. Raises EOFError when the server has ended."""
        try:
            message = self.reply.recv(64)
        except ConnectionError:
            message = b""
        if not message:
            self.server.close()
            raise EOFError("the fork server has ended")
        return message

    @property
    def running(self) -> bool:
        return self.code is None and not select.select([self.ended], [], [], 0)[0]

    def wait(self) -> int:
        """Wait for the end; the exit code, or minus the number of the signal that killed it."""
        if self.code is None:
            try:
                self.code, *used = json.loads(self._receive())
                self.server.used = linux.Usage(*used)
            except EOFError:  # its children are killed with it
                self.code = -signal.SIGKILL
        return self.code

    def close(self) -> None:
        self.reply.close()


class ForkServer:
    """A process that serves forks of itself (bench.execution.fork_server.serve), with this
    process's end of its socket. It ends with this process. `used` holds the resources that it and
    its children had used when the last child ended; `held` is closed with it."""

    def __init__(self, link: socket.socket, child: Child, held: ExitStack | None = None):
        self.link, self.child, self.held = link, child, held
        self.owner = os.getpid()
        self.used = linux.Usage(0.0, 0)

    @classmethod
    def importing(cls, environment: Mapping[str, str], modules: Sequence[str]) -> ForkServer:
        """A fork server in a fresh interpreter that imports these modules."""
        link, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote:
            number = remote.fileno()
            arguments = ["fork_server", str(os.getpid()), str(number), *modules]
            process = _run_python(arguments, environment, subprocess.DEVNULL, [number])
        return cls(link, SubprocessChild(process))

    @property
    def usable(self) -> bool:
        """Whether it runs and belongs to this process and not to its parent."""
        return self.owner == os.getpid() and self.link.fileno() >= 0 and self.child.running

    def close(self) -> None:
        if self.link.fileno() < 0:
            return
        self.link.close()
        if self.owner != os.getpid():
            return
        if self.held:
            self.held.close()
        else:
            kill(self.child)
            self.child.close()


Child = SubprocessChild | ForkedChild


def kill(child: Child) -> int:
    """Kill the child's process group, which may have ended already, and return the exit code."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            if not child.running:
                raise
            os.kill(child.pid, signal.SIGKILL)  # a fork that leads no process group yet
    return child.wait()


def _run_python(
    arguments: Sequence[str], environment: Mapping[str, str], output: int, inherited: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a module of bench.execution in a new session, with further inherited descriptors."""
    module, *rest = arguments
    return subprocess.Popen(
        [sys.executable, "-m", f"bench.execution.{module}", *rest],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, **environment},
        pass_fds=inherited,
        start_new_session=True,
    )


fork_servers: dict[tuple[object, ...], ForkServer] = {}
"""The running fork servers, by their environment and modules or by the cell that they have loaded.
There is at most one of each kind, since it holds 300 MiB and more."""


def start(
    module: str,
    environment: Mapping[str, str],
    channels: Channels,
    server: ForkServer | None = None,
) -> Child:
    """Run `measure` of a module in a child, if possible a fork of the server. The descriptors stay
    open in this process."""
    if server:
        # Fall back to a fresh interpreter, whose output contains the error.
        with contextlib.suppress(EOFError, OSError):
            content = {"module": module, "environment": {**os.environ, **environment}}
            return ForkedChild(server, content, channels)
    arguments = ["worker", module, str(os.getpid()), *map(str, channels)]
    return SubprocessChild(_run_python(arguments, environment, channels.output, channels[1:]))


def fork_server(environment: Mapping[str, str], modules: Sequence[str]) -> ForkServer:
    """The running fork server that has imported these modules, or a new one."""
    startup = {name: os.environ[name] for name in READ_AT_STARTUP if name in os.environ}
    key = (*sorted({**startup, **environment}.items()), *modules)
    server = fork_servers.get(key)
    if server is None or not server.usable:
        close_fork_servers()
        fork_servers[key] = server = ForkServer.importing(environment, modules)
    return server


def counters() -> host.Counters:
    """The system's counters, with the resources used by the running fork servers: the counters of
    this process include them only after waiting for the servers."""
    return host.counters([server.used for server in fork_servers.values() if server.usable])


@atexit.register
def close_fork_servers() -> None:
    while fork_servers:
        fork_servers.popitem()[1].close()
    for path in Path(os.environ.get("TMPDIR", "/tmp")).glob("torchinductor_*"):
        with contextlib.suppress(OSError):
            path.rmdir()  # torch makes it when it is imported, and often leaves it empty


@contextlib.contextmanager
def _delayed_interrupt() -> Iterator[None]:
    """Ctrl-C takes effect at the end of the block. Python drops an exception that is raised while
    it runs the hooks of a fork, such as logging's."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers run only in the main thread
        return
    parent = os.getpid()
    arrived: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived and os.getpid() == parent:
        signal.raise_signal(signal.SIGINT)


def run_in_fork(work: Callable[[], T]) -> T:
    """Run `work` in a fork of this process, and return its value or raise its exception, which is
    pickled. Raises StoreError when the fork was killed.

    The supervisor runs during the measurement, so it stays small: a fork returns its memory.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    parent = os.getpid()
    with _delayed_interrupt():
        pid = os.fork()
    if not pid:
        code = 1
        try:
            linux.die_with_parent(parent)
            try:
                content = pickle.dumps((True, work()))
            except BaseException as error:
                content = pickle.dumps((False, error))
            with open(write, "wb") as pipe:
                pipe.write(content)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    try:
        with open(read, "rb") as received:
            content = received.read()
    finally:
        _, status = os.waitpid(pid, 0)
    if not content:
        raise StoreError(
            f"the process that reads and stores rows ended with code "
            f"{os.waitstatus_to_exitcode(status)}; run the same command again to continue"
        )
    succeeded, value = pickle.loads(content)
    if not succeeded:
        raise value
    result: T = value
    return result
