"""Methods that hide their time: they replace clocks, or work outside the timed region."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo
from tests.cheaters import native_patch

TIMER, KERNEL = time.perf_counter_ns, time.monotonic_ns
REAL = native_patch.original(TIMER)
REAL_USAGE = native_patch.original(resource.getrusage)
NAP_S = 0.02
_pending: list[int] = []


@dataclass
class Lag:
    """The lag of the clocks."""

    how: str
    ns: int = 0
    since: int = 0

    def now(self) -> int:
        if self.how == "shifted":  # its own next call would have come by then
            passed = REAL() - self.since - 4 * self.ns
            return self.ns - min(self.ns, max(0, passed))
        if self.how == "calls":
            lag, self.ns = self.ns, 0
            return lag
        return self.ns

    def grow(self, ns: int) -> None:
        self.ns, self.since = self.now() + ns, REAL()

    def usage(self) -> Any:
        real = REAL_USAGE(resource.RUSAGE_SELF)
        return SimpleNamespace(
            ru_utime=real.ru_utime - self.now() / 1e9,
            ru_stime=real.ru_stime,
            ru_minflt=real.ru_minflt,
        )


@dataclass(frozen=True)
class SlowClock(Method):
    """Replaces clocks by clocks that hide `share` of its calls from all readers.

    calls    the clock that times calls, only between the two readings of a call
    loop     the clock that times calls, from the first call on
    all      every clock that measures, and the processor time
    shifted  the same, but the hidden time seems to pass in vanilla's next call
    """

    how: str = "all"
    share: float = 0.6
    lags: list[Lag] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if not self.lags:
            self.lags.append(Lag(self.how))
            self.replace(self.lags[0])
        started = REAL()
        out = super().encode(layers, hidden, sequence)
        self.lags[0].grow(int(self.share * (REAL() - started)))
        return out

    def replace(self, lag: Lag) -> None:
        read: Callable[[], int] = lambda: REAL() - lag.now()  # noqa: E731
        native_patch.replace(TIMER, read)
        if self.how in ("all", "shifted"):
            native_patch.replace(KERNEL, read)
            native_patch.replace(resource.getrusage, lag.usage)


def _after(frame: FrameType, event: str, argument: Any) -> None:
    if event == "return" and frame.f_code.co_name == "timed" and _pending:
        _pending.clear()
        time.sleep(NAP_S)


def _usage() -> Any:
    if _pending:
        _pending.clear()
        time.sleep(NAP_S)
    return REAL_USAGE(resource.RUSAGE_SELF)


class Lazy(Tensor):
    """A tensor subclass, whose operations could do anything."""


@dataclass(frozen=True)
class Sleeper(Method):
    """Works outside the timed region.

    after    after each timed call, where the harness counts page faults
    profile  in a profiler's hook, after each timed call
    lazy     in a tensor subclass, which could compute when it is first used
    """

    how: str = "after"

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        if self.how == "lazy":
            return torch.Tensor.as_subclass(out, Lazy)
        _pending.append(1)
        if self.how == "profile":
            sys.setprofile(_after)
        else:
            native_patch.replace(resource.getrusage, _usage)
        return out
