"""XAttention (Xu et al., arXiv 2503.16428, §2): blocks chosen by the sums of antidiagonals.

The score of a tile of `stride` × `stride` pairs is the sum of its antidiagonal, which crosses every
row and column of the tile. A softmax over the tiles of a row, summed by block, estimates the weight
of each block (algorithm 1). A block of queries reads the fewest blocks that hold the share
`threshold`; the first block and its own are counted first. The estimate costs 1/stride of all
scores. The queries of a block decide together, so later queries of its block may change which keys
a query reads; it never reads later keys.

Differs from the official code (mit-han-lab/x-attention, no licence found):
- Heads may share keys, and a row's length need not be a multiple of 2,048.
- In the first chunk of queries, which is all of a prompt of up to 16,384 tokens, the official
  `find_blocks_chunked` overwrites the choice of the first block by that of the own blocks. The
  first block is then read without being counted, and each block of queries reads one block more
  than the share needs: `chunk_quirk=true`. For 2,030 random tokens with a threshold of 0.8 and a
  stride of 8, that is 95 % of the blocks instead of 86 %.
- The official runs of Llama (`load_llama.py`) have a table of thresholds, one for each layer and
  head, with a mean of 0.907. Here all heads have the same. The official attention function takes
  0.8 by default, its estimator and the paper 0.9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.attention import mask_future, widened
from methods.parts.parameters import Positive, Range
from methods.parts.sparse_prefill import BlockChoice, Read, SparsePrefill, fewest_covering, past

TILES = 1 << 20
"""Scores of tiles that are estimated at a time; an eighth of the rows, so that few are in vain."""


@dataclass(frozen=True)
class XAttention(SparsePrefill):
    """block        tokens in a block, a multiple of stride
    stride       tokens on each side of a tile: the paper's are 8 and 16
    threshold    share of the estimated weight that is read; above 1: all blocks
    chunk_quirk  the first chunk of queries reads one block more, as in the official code
    """

    block: Positive = 128
    stride: Positive = 16
    threshold: Annotated[float, Range(above=0)] = 0.9
    chunk_quirk: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block % self.stride:
            raise ValueError(f"block is {self.block}; it takes a multiple of stride={self.stride}")

    def exact_limit(self) -> XAttention:
        return replace(self, threshold=2.0)

    def scaled_down(self) -> XAttention:
        return replace(self, block=4, stride=2, threshold=0.5)

    def is_dense(self, n: int) -> bool:
        return n <= 2 * self.block or self.threshold > 1

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        weights = self.block_weights(query, key, scale)
        causal = past(weights.shape[1], weights.device)
        first = torch.eye(len(causal), dtype=torch.bool, device=weights.device)
        start = first_chunk(len(key)) // self.block if self.chunk_quirk else 0
        first[start:, 0] = True
        first = first.expand_as(weights)
        chosen = fewest_covering(weights, self.threshold, first)
        if self.chunk_quirk:
            rank = weights.masked_fill(first, torch.inf).argsort(-1, descending=True).argsort(-1)
            more = rank <= chosen.sum(-1, keepdim=True)
            chosen[:, :start] |= more[:, :start]
            chosen[..., 0] = True
        return key[None], value[None], BlockChoice(chosen & causal, self.block)

    def block_weights(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """[g, Q, Q]: the estimated weights of queries [g, n, d] on keys [n, d], by block."""
        side = self.block // self.stride  # tiles on each side of a block
        tiles = -(-len(key) // self.stride)
        missing = tiles * self.stride - len(key)
        # In a tile, the last query meets the first key.
        query = pad(query, (0, 0, 0, missing)).unflatten(1, (tiles, -1)).flatten(2)
        key = pad(key, (0, 0, 0, missing)).unflatten(0, (tiles, -1)).flip(1).flatten(1)
        blocks = -(-tiles // side)
        weights = query.new_zeros(len(query), blocks, blocks, dtype=widened(query[:0]).dtype)
        rows = max(1, min(TILES // (len(query) * tiles), tiles // 8) // side) * side
        for start in range(0, tiles, rows):
            some = query[:, start : start + rows].contiguous()  # @ copies the keys otherwise
            seen = key[: start + some.shape[1]]
            scores = widened(some @ seen.T * (scale / self.stride))
            shares = mask_future(scores, start).softmax(-1)
            ends = (0, -len(seen) % side, 0, -some.shape[1] % side)
            sums = pad(shares, ends).unflatten(2, (-1, side)).sum(3).unflatten(1, (-1, side)).sum(2)
            first = start // side
            weights[:, first : first + sums.shape[1], : sums.shape[2]] = sums
        return weights


def first_chunk(n: int) -> int:
    """Number of queries in the official code's first chunk, for a prompt of n tokens. Longer
    prompts have smaller chunks, since the scores of a chunk are in memory at once."""
    length = 1 << (n - 1).bit_length()
    return max(2048, min(length, (1 << 28) // length))
