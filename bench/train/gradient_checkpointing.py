"""Gradient checkpointing in any family (Chen et al., arXiv 1604.06174): each layer that a method
walks keeps only its input, and is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bench.models.wrappers import Wrapped
from methods.base import Layer, SequenceInfo


@dataclass(frozen=True)
class CheckpointedMethod(Wrapped):
    """A method whose layers keep no activations; the layers of an encoder-decoder's decoder keep
    them."""

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return super().encode([*map(CheckpointedLayer, layers)], hidden, sequence)

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return super().encode_shorter([*map(CheckpointedLayer, layers)], hidden, sequence)


PARTS = ("from_normed", "before_norm")
"""What a method may run of a layer instead of the whole."""


class CheckpointedLayer:
    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        output: Tensor = checkpoint(self.layer, hidden, sequence, use_reentrant=False)
        return output

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.layer, name)
        return partial(checkpoint, attribute, use_reentrant=False) if name in PARTS else attribute
