"""Replaces functions that a measurement uses.

equal    torch's comparison, by which checks find a cached output, which it then returns
norm     the same for checks with a tolerance
coin     the function that decides the order of each pair
forward  that of the model's classes: vanilla's linear layers become slower
shared   the parts of methods that vanilla uses
own      that of one of the model's modules
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from methods.base import Layer, Method, SequenceInfo
from methods.parts import dense

ATTEND, FORWARD = dense.DenseAttention.attend, nn.Linear.forward
EQUAL, NORM = torch.equal, Tensor.norm


def slow_attend(*arguments: Any) -> Tensor:
    time.sleep(1e-3)
    return ATTEND(*arguments)


def slow_forward(module: nn.Linear, given: Tensor) -> Tensor:
    time.sleep(1e-4)
    return FORWARD(module, given)


@dataclass(frozen=True)
class Patcher(Method):
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
                nn.Linear.forward = slow_forward
            case "shared":
                dense.DenseAttention.attend = slow_attend
            case "own":
                block: Any = layers[0]
                linear = next(one for one in block.block.modules() if isinstance(one, nn.Linear))
                linear.forward = lambda given: slow_forward(linear, given)
        return out
