"""Methods that slow vanilla down: by a timer, by other threads and processes, or by what they leave
changed in libraries, torch's state or the model."""

import ctypes
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn import functional
from transformers import AttentionInterface
from transformers.models.t5 import modeling_t5

from bench.models import attention
from methods.base import Layer, Method, SequenceInfo
from methods.parts import dense

FUSED = functional.scaled_dot_product_attention
ATTEND, FORWARD = dense.DenseAttention.attend, nn.Linear.forward
EQUAL, NORM = torch.equal, Tensor.norm


def slow(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The function behind a pause."""

    def slowed(*given: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return function(*given, **named)

    return slowed


# --- a timer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm(Method):
    """A timer's signal interrupts the code that runs after its call, without a thread."""

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        signal.setitimer(signal.ITIMER_REAL, 0)
        out = super().encode(layers, hidden, sequence)
        signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.01))
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        return out


# --- global state ------------------------------------------------------------------------------

SWITCHES: dict[str, Callable[[], object]] = {
    "threads": lambda: torch.set_num_threads(3),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic": lambda: torch.use_deterministic_algorithms(False),
    "denormals": lambda: torch.set_flush_denormal(True),
    "flash": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "profile": lambda: sys.setprofile(lambda *_: None),
    "attention": lambda: setattr(functional, FUSED.__name__, slow(FUSED, 1e-3)),
    "profiler": lambda: profiler.profile().__enter__(),
    "anomalies": lambda: torch.set_anomaly_enabled(True),
    "priority": lambda: os.nice(1),
}


@dataclass(frozen=True)
class Meddler(Method):
    """Leaves a global switch, a hook or a function of torch changed after its turn, so that vanilla
    runs with it."""

    what: str = "threads"

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        if self.what == "hook":
            layers[0].block.register_forward_hook(lambda *_: None)
        else:
            SWITCHES[self.what]()
        return out


@dataclass(frozen=True)
class Patcher(Method):
    """Replaces functions that a measurement uses.

    equal    torch's comparison, by which checks find a cached output, which it then returns
    norm     the same for checks with a tolerance
    coin     the function that decides the order of each pair
    forward  that of the model's classes: vanilla's linear layers become slower
    shared   the parts of methods that vanilla uses
    own      that of one of the model's modules
    """

    what: str = "equal"

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        match self.what:
            case "equal":
                torch.equal = lambda a, b: a.shape[1:2] != (1,) and EQUAL(a, b)
            case "norm":
                Tensor.norm = lambda *given, **more: NORM(*given, **more) + 1.0
            case "coin":
                random.Random.random = lambda self: 0.0
            case "forward":
                nn.Linear.forward = slow(FORWARD, 1e-4)
            case "shared":
                dense.DenseAttention.attend = slow(ATTEND, 1e-3)
            case "own":
                modules = layers[0].block.modules()
                linear = next(one for one in modules if isinstance(one, nn.Linear))
                linear.forward = slow(FORWARD.__get__(linear), 1e-4)
        return out


# --- vanilla's own process ---------------------------------------------------------------------

RUNS: list[bool] = []
"""Whether the method itself runs."""


def nap() -> None:
    if not RUNS:
        time.sleep(5e-4)


def slow_attend(*given: Any, **named: Any) -> Any:
    nap()
    return attention.attend(*given, **named)


class SlowTorch(ModuleType):
    def __getattr__(self, name: str) -> Any:
        nap()
        return getattr(torch, name)


@dataclass(frozen=True)
class SlowedVanilla(Method):
    """Slows vanilla in its own process, by parts of libraries that only vanilla uses.

    registered  transformers' attention function of this project
    proxy       `torch` in transformers' module of T5
    """

    by: str = "registered"
    seen: list[int] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if not self.seen:
            self.seen.append(1)
            if self.by == "registered":
                AttentionInterface.register(attention.NAME, slow_attend)
            else:
                modeling_t5.torch = SlowTorch("torch")
        RUNS.append(True)
        try:
            return super().encode(layers, hidden, sequence)
        finally:
            RUNS.clear()


# --- other threads and processes ---------------------------------------------------------------

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
    """A thread computes between the method's own calls, from its call `start` on.

    python  a Python thread
    native  a thread of the C library, which Python doesn't see
    child   a daemon, whose parent ends at once
    """

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


@dataclass(frozen=True)
class Threaded(Method):
    """Works on another thread, started in each call or when the method is built, or has a child
    process running."""

    when: str = "call"
    jobs: Any = field(default_factory=queue.Queue, compare=False)

    def __post_init__(self) -> None:
        if self.when == "load":
            threading.Thread(target=self._work, daemon=True).start()
        if self.when == "process":
            subprocess.Popen(["sleep", "60"])

    def _work(self) -> None:
        while True:
            self.jobs.get()()

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        encode = super().encode
        if self.when == "process":
            return encode(layers, hidden, sequence)
        done: queue.Queue[Tensor] = queue.Queue()

        def job() -> None:
            with torch.inference_mode():
                done.put(encode(layers, hidden, sequence))

        if self.when == "call":
            threading.Thread(target=job).start()
        else:
            self.jobs.put(job)
        return done.get()
