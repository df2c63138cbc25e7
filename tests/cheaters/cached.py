"""Returns what it returned before, known by `by`: shape, address, the first tokens, or all of them.

noisy  by shape, with noise that no one would see
late   by shape, but only after twenty honest calls, among the pairs
all    by every token: right, and of no use where no input comes twice
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch
from torch import Tensor

from methods.base import Layer, Method, Sequence


@dataclass(frozen=True)
class Cached(Method):
    by: str = "shape"
    kept: dict[Hashable, Tensor] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        key: Hashable = tuple(hidden.shape)
        if self.by == "address":
            key = sequence.vip.data_ptr() if sequence.vip is not None else 0
        if self.by in ("first", "all"):
            part = hidden[:, :4] if self.by == "first" else hidden
            key = part.numpy().tobytes()
        self.calls.append(1)
        honest = self.by == "late" and len(self.calls) < 20
        if key not in self.kept or honest:
            self.kept[key] = super().encode(layers, hidden, sequence)
        kept = self.kept[key]
        return kept + 1e-6 * torch.randn_like(kept) if self.by == "noisy" else kept
