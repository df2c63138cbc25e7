"""Leaves a global switch, a hook or a function of torch changed after its turn, so that vanilla
runs with it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.nn import functional

from methods.base import Layer, Method, SequenceInfo

REAL = functional.scaled_dot_product_attention


def slow_attention(*arguments: Any, **options: Any) -> Tensor:
    time.sleep(1e-3)
    return REAL(*arguments, **options)


def slow_attention_left() -> None:
    functional.scaled_dot_product_attention = slow_attention


SWITCHES: dict[str, Callable[[], object]] = {
    "threads": lambda: torch.set_num_threads(3),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic": lambda: torch.use_deterministic_algorithms(False),
    "denormals": lambda: torch.set_flush_denormal(True),
    "flash": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "profile": lambda: sys.setprofile(lambda *_: None),
    "attention": slow_attention_left,
    "profiler": lambda: profiler.profile().__enter__(),
    "anomalies": lambda: torch.set_anomaly_enabled(True),
    "priority": lambda: os.nice(1),
}


@dataclass(frozen=True)
class Meddler(Method):
    what: str = "threads"

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        if self.what == "hook":
            block: Any = layers[0]
            block.block.register_forward_hook(lambda *_: None)
        else:
            SWITCHES[self.what]()
        return out
