"""Does its work when the clock has been read.

profile  in a profiler's hook, after each timed call of its own
lazy     a tensor that is computed when it is first used
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from methods.base import Layer, Method, Sequence

NAP_S = 0.02
_owed: list[int] = []


def _after(frame: FrameType, event: str, argument: Any) -> None:
    if event == "return" and frame.f_code.co_name == "_on_cpu" and _owed:
        _owed.clear()
        time.sleep(NAP_S)


class Lazy(Tensor):
    """A tensor that could do anything when it is used."""


@dataclass(frozen=True)
class Sleeper(Method):
    how: str = "profile"

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        if self.how == "lazy":
            return torch.Tensor.as_subclass(out, Lazy)
        _owed.append(1)
        sys.setprofile(_after)
        return out
