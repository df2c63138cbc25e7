"""Exact attention with a known peak: it allocates `mib` MiB before and frees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Allocates(Method):
    mib: int = 0

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        torch.empty(self.mib << 20, dtype=torch.uint8).fill_(1)
        return super().encode(layers, hidden, sequence)
