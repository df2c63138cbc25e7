"""FlexPrefill (Lai et al., arXiv 2502.20766, §3): a pattern for each head, sized by the prompt.

The weights of the last block of queries decide (algorithms 1 and 2): where the weights of pooled
queries and keys are close to the true weights of blocks, a head reads the blocks with the largest
pooled weights ("query-aware", algorithm 4); otherwise columns and diagonals of blocks
("vertical-slash", algorithm 3). Each head reads enough blocks to cover the share `gamma` of the
weights. The first column and a query's own block are always read.

The end of the prompt decides for each head, so later tokens may change which keys a query reads; it
never reads later keys.

As in the official code (ByteDance-Seed/FlexPrefill, Apache-2.0), where the paper gives no rule: the
columns and diagonals that cover gamma are counted in tokens, and the blocks with the largest sums
are read whole; blocks of diagonals begin at the farthest one, so that the nearest block has fewer
where `block` doesn't divide the prompt.

Differs from the official code: weights that reach gamma exactly are enough (there one more is
taken, and one block fewer in a query-aware head); tokens are counted in blocks of `block` (there in
blocks of 128, for any size of `block`); each row of a batch chooses its own blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.attention import mask_future, widened
from methods.parts.blocks import block_means
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.sparse_prefill import (
    BlockChoice,
    Read,
    SparsePrefill,
    fewest_covering,
    last_weights,
    offset_sums,
    past,
)

Share = Annotated[float, Range(above=0, most=1)]


@dataclass(frozen=True)
class FlexPrefill(SparsePrefill):
    """gamma       share of the weights to cover
    tau         greatest distance of pooled from true weights in a query-aware head, the square root
                of the Jensen-Shannon divergence; 0: no head is query-aware
    block       tokens in a block, also the number of last queries whose weights decide
    min_budget  least tokens in columns, and in diagonals
    """

    gamma: Share = 0.9
    tau: Annotated[float, Range(least=0, most=1)] = 0.1
    block: Positive = 128
    min_budget: NonNegative = 512

    def exact_limit(self) -> FlexPrefill:
        return replace(self, min_budget=2048)

    def scaled_down(self) -> FlexPrefill:
        return replace(self, block=4, min_budget=4, gamma=0.5)

    def is_dense(self, n: int) -> bool:
        return n <= max(2 * self.block, self.min_budget) or self.gamma == 1

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        weights = last_weights(query, key, scale, self.block)
        columns, diagonals = weights.mean(1), offset_sums(weights) / weights.shape[1]
        pooled_key = self._means(key[None])
        last = widened(query[:, -self.block :]).mean(1)
        estimate = (last * scale @ pooled_key[0].T).softmax(-1)
        sums = self._sums(columns)
        aware = distance(estimate, sums) < self.tau
        vertical = self._largest(columns, sums, aware)
        slash = self._largest(diagonals, self._sums(diagonals.flip(1)).flip(1), aware)
        causal = past(vertical.shape[1], key.device)
        block = torch.arange(len(causal), device=key.device)
        chosen = vertical[:, None] | slash[:, (block[:, None] - block).clamp(min=0)]
        if bool(aware.any()):
            scores = mask_future(self._means(query[aware]) * scale @ pooled_key.mT, 0)
            covering = fewest_covering(scores.softmax(-1).flatten(1), self.gamma)
            chosen[aware] |= covering.view_as(scores)
        return key[None], value[None], BlockChoice(chosen & causal, self.block)

    def _largest(self, weights: Tensor, blocks: Tensor, aware: Tensor) -> Tensor:
        """[g, Q] bool: the blocks with the largest sums [g, Q] of the weights [g, n] of columns or
        diagonals, always including the first; query-aware heads get the least number."""
        least = max(1, -(-self.min_budget // self.block))
        count = fewest_covering(weights, self.gamma).sum(1) // self.block + 1
        count = count.clamp(min=least).masked_fill(aware, least)
        blocks[:, 0] = torch.inf
        rank = blocks.argsort(1, descending=True).argsort(1)
        return rank < count[:, None]

    def _sums(self, x: Tensor) -> Tensor:
        """[g, n] → [g, Q]"""
        blocks: Tensor = pad(x, (0, -x.shape[1] % self.block)).unflatten(1, (-1, self.block))
        return blocks.sum(2)

    def _means(self, x: Tensor) -> Tensor:
        """[g, n, d] → [g, Q, d]"""
        ones = x.new_ones(1, 1, x.shape[1], 1)
        return block_means(ones, self.block, widened(x)[None])[1][0][0]


def distance(p: Tensor, q: Tensor) -> Tensor:
    """[...]: the square root of the Jensen-Shannon divergence of distributions [..., k]."""
    middle = (p + q) / 2
    middle = middle.clamp(min=torch.finfo(p.dtype).tiny)
    divergence = (torch.xlogy(p, p / middle) + torch.xlogy(q, q / middle)).sum(-1) / 2
    return divergence.clamp(min=0).sqrt()
