"""Slows vanilla in its own process, by parts of libraries that only vanilla uses.

registered  transformers' attention function of this project
proxy       `torch` in transformers' module of T5
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.t5 import modeling_t5

from bench.models import attention
from methods.base import Layer, Method, SequenceInfo

NAP_S = 5e-4
RUNS: list[bool] = []
"""Whether the method itself runs."""


def nap() -> None:
    if not RUNS:
        time.sleep(NAP_S)


def slow_attend(*given: Any, **named: Any) -> Any:
    nap()
    return attention.attend(*given, **named)


class SlowTorch(ModuleType):
    def __getattr__(self, name: str) -> Any:
        nap()
        return getattr(torch, name)


@dataclass(frozen=True)
class SlowedVanilla(Method):
    by: str = "registered"
    seen: list[int] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if not self.seen:
            self.seen.append(1)
            if self.by == "registered":
                AttentionInterface.register(attention.NAME, slow_attend)
            else:
                modeling_t5.torch = SlowTorch("torch")  # type: ignore[attr-defined]
        RUNS.append(True)
        try:
            return super().encode(layers, hidden, sequence)
        finally:
            RUNS.clear()
