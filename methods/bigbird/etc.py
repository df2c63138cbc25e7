"""BigBird-ETC (Zaheer et al., arXiv 2007.14062, §2): extra tokens are global.

Official code: etcmodel of google-research/google-research (Apache-2.0).

Differs from the official code (ETC's):
- Extra tokens start as means of stretches of the sequence; there they are a second input with
  separate embeddings.
- The window consists of whole blocks, so it reaches further on one side of most tokens; there it is
  84 tokens on each side.
- Extra tokens share all weights with the others; there they have separate output projections.
- The only relative positions are the model's; there learned labels of distances enter the scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo, Workload
from methods.bigbird.bigbird import BigBird
from methods.bigbird.block_pattern import BlockGrid
from methods.parts.parameters import NonNegative, Positive


@dataclass(frozen=True)
class BigBirdETC(BigBird):
    """g extra tokens are global, and no block of the sequence is.

    g  extra global tokens. A token attends to its window and to these under one softmax; they
       attend to all tokens.

    The paper trains an embedding for each extra token. Here each starts as the mean of its stretch
    of the sequence, at the mean of its positions. (The paper's runs had blocks of 84 tokens, and
    ETC a radius of 84 tokens; the native kernel takes blocks of 64.)
    """

    random: NonNegative = 0
    g: Positive = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_region == "official":
            raise ValueError("random_region is 'official'; ETC has no official random blocks")

    def exact_limit(self) -> None:
        return None  # vanilla doesn't have the extra tokens as keys

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return False  # for the same reason

    def scaled_down(self) -> Method:
        return replace(self, block_size=4, g=4)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        batch, n, _ = hidden.shape
        valid, positions = sequence.valid, sequence.positions
        if valid is None:
            valid = torch.ones(batch, n, dtype=torch.bool, device=hidden.device)
        if positions is None:
            positions = torch.arange(n, device=hidden.device).expand(batch, n)
        tokens = valid.sum(1, keepdim=True).clamp(min=1)
        stretch = ((valid.cumsum(1) - 1) * self.g // tokens).masked_fill(~valid, self.g)
        count = _sums(valid.long(), stretch, self.g)
        place = _sums(positions * valid, stretch, self.g) / count.clamp(min=1)
        extra = _sums(hidden.float(), stretch, self.g) / count.clamp(min=1)[..., None]
        counts = sequence.log_multiplicity
        joined = SequenceInfo(
            positions=torch.cat(((place + 0.5).long(), positions), 1),
            valid=torch.cat((count > 0, valid), 1),
            log_multiplicity=None if counts is None else torch.cat((0.0 * count, counts), 1),
            causal=sequence.causal,
        )
        hidden = super().encode(layers, torch.cat((extra.to(hidden.dtype), hidden), 1), joined)
        return hidden[:, self.g :]

    def _extra(self, valid: Tensor | None) -> int:
        return self.g if valid is None else int(valid[: self.g].sum())

    def _grid(self, n: int, extra: int) -> BlockGrid:
        first = math.ceil(extra / self.block_size)
        blocks = first + math.ceil((n - extra) / self.block_size)
        return BlockGrid(blocks, first, blocks)


def _sums(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums of x [B, n, …] by index [B, n] → [B, size, …]; tokens with index `size` are left out."""
    shape = (x.shape[0], size + 1, *x.shape[2:])
    index = index.view(*index.shape, *(1,) * (x.dim() - 2)).expand_as(x)
    return x.new_zeros(shape).scatter_add(1, index, x)[:, :size]
