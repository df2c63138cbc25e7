"""Gradient checkpointing in any family (Chen et al., arXiv 1604.06174): each layer that a method
walks keeps its input alone, and is computed again on the way back."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench.children.wrapped import Wrapped
from methods.base import Layer, Sequence


@dataclass(frozen=True)
class Recomputed(Wrapped):
    """A method whose layers keep no activations; a decoder beside an encoder keeps its own."""

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        return super().encode([Again(layer) for layer in layers], hidden, sequence)

    def encode_shorter(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        return super().encode_shorter([Again(layer) for layer in layers], hidden, sequence)


class Again:
    """A layer that is computed twice."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, hidden: Tensor, sequence: Sequence) -> Tensor:
        output: Tensor = checkpoint(self.layer, hidden, sequence, use_reentrant=False)
        return output

    def from_normed(self, normed: Tensor, sequence: Sequence) -> Tensor:
        output: Tensor = checkpoint(self.layer.from_normed, normed, sequence, use_reentrant=False)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)
