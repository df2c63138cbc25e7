"""Slows vanilla down: a thread computes between the method's own calls, from its call `start` on.

python  a Python thread
native  a thread of the C library, which Python doesn't see
child   a daemon, whose parent ends at once
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo

LIBC = ctypes.CDLL(None)
LOCK = ctypes.c_int()
STOPPED = threading.Event()
NATIVE: list[ctypes.c_ulong] = []
PYTHON: list[threading.Thread] = []


def stop() -> None:
    """Ends the threads that run."""
    STOPPED.set()
    while PYTHON:
        PYTHON.pop().join()
        time.sleep(0.05)  # the kernel's thread ends a little later
    while NATIVE:
        LIBC.pthread_spin_unlock(ctypes.byref(LOCK))
        LIBC.pthread_join(NATIVE.pop(), None)


def start_python() -> None:
    STOPPED.clear()
    PYTHON.append(threading.Thread(target=compute, daemon=True))
    PYTHON[0].start()


def compute() -> None:
    while not STOPPED.is_set():
        pass


def start_native() -> None:
    """Starts a thread that waits for a lock that is held, without sleep."""
    LIBC.pthread_spin_trylock(ctypes.byref(LOCK))
    thread = ctypes.c_ulong()
    wait = ctypes.cast(LIBC.pthread_spin_lock, ctypes.c_void_p)
    LIBC.pthread_create(ctypes.byref(thread), None, wait, ctypes.byref(LOCK))
    NATIVE.append(thread)


def daemon() -> None:
    """Starts a process whose parent isn't this one."""
    pid = os.fork()
    if not pid:
        if not os.fork():
            os.setsid()
            time.sleep(30)
        os._exit(0)
    os.waitpid(pid, 0)


@dataclass(frozen=True)
class Spinner(Method):
    how: str = "python"
    start: int = 1
    calls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        stop()

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        self.calls.append(1)
        if self.how == "native":
            stop()
        out = super().encode(layers, hidden, sequence)
        if len(self.calls) == self.start and self.how != "native":
            (daemon if self.how == "child" else start_python)()
        if len(self.calls) >= self.start and self.how == "native":
            start_native()
        return out
