"""Works outside the timed region.

after    after each timed call, where the harness counts page faults
profile  in a profiler's hook, after each timed call
lazy     in a tensor subclass, which could compute when it is first used
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo
from tests.cheaters import native_patch

NAP_S = 0.02
REAL_USAGE = native_patch.original(resource.getrusage)
_pending: list[int] = []


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
