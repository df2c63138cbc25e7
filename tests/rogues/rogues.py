"""Methods that end badly, each in its own way, and one that doesn't."""

import mmap
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from methods.base import AttentionCall, Method


@dataclass(frozen=True)
class Fine(Method):
    """Exact attention."""


@dataclass(frozen=True)
class Raises(Method):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        raise ArithmeticError("seven is not eight")


@dataclass(frozen=True)
class NotANumber(Method):
    """Exact attention, and NaN in the second layer."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = super().attend(query, key, value, call)
        return out * float("nan") if call.layer == 1 else out


@dataclass(frozen=True)
class Segfaults(Method):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return value


@dataclass(frozen=True)
class Exits(Method):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        os._exit(9)


@dataclass(frozen=True)
class Hangs(Method):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        time.sleep(3600)
        return value


@dataclass(frozen=True)
class Hoards(Method):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        held = []
        while True:
            held.append(torch.empty(256 << 20, dtype=torch.uint8))


@dataclass(frozen=True)
class Shares(Method):
    """Allocates shared memory without end, which a limit on a process's own data doesn't stop."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        held = []
        while True:
            held.append(mmap.mmap(-1, 64 << 20))
            held[-1].write(b"x" * (64 << 20))
            time.sleep(0.1)  # no faster than the watcher


@dataclass(frozen=True)
class Orphans(Method):
    """Kills the supervisor: the parent of the fork server, whose fork is the process with the
    model, whose fork is the process with the inputs."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        pid = os.getppid()
        for _ in range(3):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        time.sleep(3600)
        return value


@dataclass(frozen=True)
class Dawdles(Method):
    """Exact attention, with five seconds for each row on any machine."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.layer == 0:
            time.sleep(5)
        return super().attend(query, key, value, call)


@dataclass(frozen=True)
class Prints(Method):
    """100 MB in all: one layer of one forward prints them."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.layer == 0:
            for _ in range(100):
                sys.stdout.write(("x" * 99 + "\n") * 10_000)
        return super().attend(query, key, value, call)
