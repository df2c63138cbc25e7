"""Takes 64 MiB, and has given them back when anyone looks; `reset` also takes the kernel's
high-water mark back."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from methods.base import Layer, Method, Sequence

BYTES = 64 << 20


@dataclass(frozen=True)
class Frees(Method):
    reset: bool = True

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        torch.empty(BYTES, dtype=torch.uint8).fill_(1)
        if self.reset:
            Path("/proc/self/clear_refs").write_text("5")
        return super().encode(layers, hidden, sequence)
