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


def daemon() -> None:
    """Starts a process that this one is no parent of."""
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
    lock: ctypes.c_int = field(default_factory=ctypes.c_int, compare=False)
    own: threading.Event = field(default_factory=threading.Event, compare=False)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        self.calls.append(1)
        self.own.set()
        if self.how == "native":
            LIBC.pthread_spin_unlock(ctypes.byref(self.lock))  # ends the thread of the last turn
        out = super().encode(layers, hidden, sequence)
        if len(self.calls) >= self.start:
            self.own.clear()
            self.spin()
        return out

    def spin(self) -> None:
        if self.how == "python" and len(self.calls) == self.start:
            threading.Thread(target=self.compute, daemon=True).start()
        if self.how == "child" and len(self.calls) == self.start:
            daemon()
        if self.how == "native":
            LIBC.pthread_spin_trylock(ctypes.byref(self.lock))
            thread = ctypes.c_ulong()
            # Waits for a lock that is held, without sleep.
            wait = ctypes.cast(LIBC.pthread_spin_lock, ctypes.c_void_p)
            LIBC.pthread_create(ctypes.byref(thread), None, wait, ctypes.byref(self.lock))
            LIBC.pthread_detach(thread)

    def compute(self) -> None:
        while True:
            if self.own.is_set():
                time.sleep(1e-4)
