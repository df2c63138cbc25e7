"""Methods that hide memory: it is freed before a reading, or where resident memory lacks it."""

import ctypes
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bench.host import linux
from methods.base import Layer, Method, SequenceInfo

LIBC = ctypes.CDLL(None)
LIBC.shmat.restype = ctypes.c_void_p
IPC_CREAT = 0o1000  # linux/ipc.h
MIB = 1 << 20


@dataclass(frozen=True)
class Frees(Method):
    """Allocates `mib` MiB and frees them before its call ends; with `reset` it also resets the
    kernel's high-water mark."""

    mib: int = 64
    reset: bool = True

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        torch.empty(self.mib * MIB, dtype=torch.uint8).fill_(1)
        if self.reset:
            Path("/proc/self/clear_refs").write_text("5")
        return super().encode(layers, hidden, sequence)


def write(file: int, mib: int) -> None:
    os.lseek(file, 0, os.SEEK_SET)
    for _ in range(mib):
        os.write(file, bytes(MIB))


def in_memfd(mib: int) -> None:
    write(os.memfd_create("state"), mib)


def in_tmpfs(mib: int) -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        write(os.dup(file.fileno()), mib)


def in_segments(mib: int) -> None:
    """Segments of one MiB each, of which never more than one is mapped."""
    for _ in range(mib):
        segment = LIBC.shmget(0, MIB, IPC_CREAT | 0o600)
        address = LIBC.shmat(segment, None, 0)
        ctypes.memset(address, 1, MIB)
        LIBC.shmdt(ctypes.c_void_p(address))


def in_child(mib: int) -> None:
    parent = os.getpid()
    if not os.fork():
        linux.die_with_parent(parent)
        held = bytearray(b"x" * (mib * MIB))
        signal.pause()
        os._exit(len(held))


PLACES: dict[str, Callable[[int], None]] = {
    "memfd": in_memfd,
    "tmpfs": in_tmpfs,
    "segment": in_segments,
    "child": in_child,
}


@dataclass(frozen=True)
class Memfd(Method):
    """Keeps `mib` MiB where a process's resident memory doesn't show them.

    memfd    in an anonymous file in memory
    tmpfs    in a file in /dev/shm, without a name
    segment  in a segment of System V's shared memory, page by page
    child    in another process
    """

    where: str = "memfd"
    mib: int = 16
    kept: list[str] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if not self.kept:
            self.kept.append(self.where)
            PLACES[self.where](self.mib)
        return super().encode(layers, hidden, sequence)
