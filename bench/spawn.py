"""Two ways to start a child: a Python of its own, or a fork of a nursery.

A nursery is a process that has imported torch and the children's modules and waits. A fork of it
starts at once, where a Python of its own needs seconds for the same imports; what a child then
loads, computes and allocates is as much its own. A GPU can't be used across a fork, so there each
child is a Python of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bench.plugins import ROOT

READ_AT_START = ("PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD", "LD_LIBRARY_PATH")


class Child(Protocol):
    """A started child, the leader of a process group. `ended` is readable once it has ended."""

    pid: int
    ended: int

    def wait(self) -> int:
        """Its exit code, below 0 for the signal that ended it; waits until it has ended."""
        ...

    def close(self) -> None: ...


def kill(child: Child) -> int:
    """End the child's whole process group; what has ended already is no error. Its exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


class Alone:
    """A child in a Python of its own, its output going to the descriptor `output`."""

    def __init__(
        self, module: str, work: Path, environment: Mapping[str, str], output: int, progress: int
    ):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.children", module, str(work), str(progress)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **environment},
            pass_fds=[progress],
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.ended = os.pidfd_open(self.pid)

    def wait(self) -> int:
        return self.process.wait()

    def close(self) -> None:
        os.close(self.ended)


class Forked:
    """A child that a nursery forks."""

    def __init__(
        self,
        nursery: Nursery,
        module: str,
        work: Path,
        environment: Mapping[str, str],
        output: int,
        progress: int,
    ):
        self.nursery = nursery
        self.code: int | None = None
        ask = {"module": module, "work": str(work), "environment": {**os.environ, **environment}}
        socket.send_fds(nursery.link, [json.dumps(ask).encode()], [output, progress])
        self.pid = int(nursery.answer())
        self.ended = nursery.link.fileno()

    def wait(self) -> int:
        if self.code is None:
            try:
                self.code = int(self.nursery.answer())
            except EOFError:  # and its children with it
                self.code = -signal.SIGKILL
        return self.code

    def close(self) -> None:
        if self.code is None:
            self.nursery.close()


class Nursery:
    """A waiting process with the environment that libraries read when they are loaded. It ends
    with this one."""

    def __init__(self, environment: Mapping[str, str]):
        self.link, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.owner = os.getpid()
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.children.nursery", str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, **environment},
                pass_fds=[there.fileno()],
                start_new_session=True,
            )

    def answer(self) -> bytes:
        """What the nursery says next. Raises EOFError when it has ended."""
        try:
            said = self.link.recv(64)
        except ConnectionError:
            said = b""
        if not said:
            self.close()
            raise EOFError("the nursery has ended")
        return said

    @property
    def alive(self) -> bool:
        """False too in a fork of the process that it belongs to, or when it said something that
        nobody asked for."""
        return (
            self.owner == os.getpid()
            and self.process.poll() is None
            and not select.select([self.link], [], [], 0)[0]
        )

    def close(self) -> None:
        self.link.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


_nurseries: dict[tuple[tuple[str, str], ...], Nursery] = {}


def start(
    module: str,
    work: Path,
    environment: Mapping[str, str],
    output: int,
    progress: int,
    preloaded: bool,
) -> Child:
    """Run `measure` of a module on the request in the folder `work`. What the child writes goes to
    `output`, how far it is to `progress`: descriptors that stay open here."""
    if preloaded:
        with contextlib.suppress(EOFError, OSError):  # then it is shown by a Python of its own
            return Forked(_nursery(environment), module, work, environment, output, progress)
    return Alone(module, work, environment, output, progress)


def _nursery(environment: Mapping[str, str]) -> Nursery:
    early = {name: os.environ[name] for name in READ_AT_START if name in os.environ}
    key = tuple(sorted({**early, **environment}.items()))
    known = _nurseries.get(key)
    if known is None or not known.alive:
        for old in _nurseries.values():  # one at a time: each holds 300 MiB
            old.close()
        _nurseries.clear()
        _nurseries[key] = known = Nursery(environment)
    return known


@atexit.register
def _close_all() -> None:
    for nursery in _nurseries.values():
        nursery.close()
