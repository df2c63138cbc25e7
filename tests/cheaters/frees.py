"""Allocates 64 MiB and frees them before its call ends; with `reset` it also resets the kernel's
high-water mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo

BYTES = 64 << 20


@dataclass(frozen=True)
class Frees(Method):
    reset: bool = True

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        torch.empty(BYTES, dtype=torch.uint8).fill_(1)
        if self.reset:
            Path("/proc/self/clear_refs").write_text("5")
        return super().encode(layers, hidden, sequence)
