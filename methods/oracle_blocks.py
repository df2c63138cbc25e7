"""The oracle of sparse prefill: each block of queries reads the blocks of keys with the most exact
weight.

The softmax weights of all pairs are computed exactly, one block of queries at a time, and summed
over the pairs of each block. A block of queries reads the fewest blocks that hold the share
`threshold` of its weight, or the share `budget` of the blocks up to its own. XAttention and
FlexPrefill estimate these sums: for the same number of blocks, neither reads more of the weight. It
isn't a method to use: it computes all weights before it skips any.

There is no paper and no official code. No block is always read; XAttention always reads the first
block and a query block's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.parameters import Positive, Range
from methods.parts.sparse_prefill import (
    BlockChoice,
    Read,
    SparsePrefill,
    fewest_covering,
    last_weights,
    past,
)

Share = Annotated[float, Range(above=0, most=1)]


@dataclass(frozen=True)
class OracleBlocks(SparsePrefill):
    """block      tokens in a block
    threshold  share of the weight that a block of queries reads
    budget     share of the blocks up to its own that it reads instead, at least one; None:
               `threshold` decides
    """

    block: Positive = 128
    threshold: Share = 0.9
    budget: Share | None = None

    def exact_limit(self) -> OracleBlocks:
        return replace(self, threshold=1, budget=None)

    def scaled_down(self) -> OracleBlocks:
        return replace(self, block=4, threshold=0.5)

    def is_dense(self, n: int) -> bool:
        return n <= self.block or (self.budget or self.threshold) == 1

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        weights = self.block_weights(query, key, scale)
        if self.budget is None:
            chosen = fewest_covering(weights, self.threshold)
        else:
            seen = torch.arange(1, weights.shape[1] + 1, device=key.device)
            rank = weights.argsort(-1, descending=True).argsort(-1)
            chosen = rank < (self.budget * seen).round().clamp(min=1)[:, None]
        chosen &= past(weights.shape[1], key.device)
        return key[None], value[None], BlockChoice(chosen, self.block)

    def block_weights(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """[g, Q, Q]: the weights of queries [g, n, d] on keys [n, d], summed by block."""
        n, size = len(key), self.block
        blocks = -(-n // size)
        rows = []
        for start in range(0, n, size):
            end = min(start + size, n)
            weights = last_weights(query[:, :end], key[:end], scale, end - start).sum(1)
            rows.append(pad(weights, (0, blocks * size - end)).unflatten(1, (blocks, size)).sum(2))
        return torch.stack(rows, 1)
