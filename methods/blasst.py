"""BLASST (Yuan et al., arXiv 2512.12087; "skip softmax" in TensorRT-LLM): flash attention that
skips the tiles of keys whose weights are negligible.

A block of queries reads the keys tile by tile and keeps the largest score of each query so far.
Where exp(score − largest) is below λ for all scores of a tile, its exponentials and its product
with the values are skipped. λ = scale / n, at most 1, for n tokens of the prompt. The scores are
always computed: q kᵀ is half of the work, and more than half of the time remains. The tile at the
diagonal is read first, then those before it: the largest scores are often near it, so more tiles
are skipped than in the order of the keys.

The queries of a block decide together, so later queries of its block may change which keys a query
reads; it never reads later keys. New tokens read all keys: the form for decoding isn't implemented.
`skipped` is the share of tiles that were skipped.

The native kernel has tiles of 64 queries and 128 keys. Tiles of other sizes run on torch, which
computes all tiles and then masks the skipped ones.

Differs from TensorRT-LLM (Apache-2.0): its tiles have other sizes, and its scale can be calibrated
for each model (587 for half of the tiles of Qwen3-30B-A3B).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods import kernels
from methods.base import AttentionCall
from methods.parts.attention import logits, mask_future
from methods.parts.dense import attend_exactly
from methods.parts.parameters import Positive, Range
from methods.parts.sparse_prefill import SparsePrefill

NATIVE = (64, 128)
"""Queries and keys of a tile of the native kernel."""


@dataclass(frozen=True)
class BLASST(SparsePrefill):
    """scale  λ times the number of tokens in the prompt; 0: no tile is skipped
    block_q  queries of a tile
    block_k  keys of a tile
    """

    scale: Annotated[float, Range(least=0)] = 1000.0
    block_q: Positive = NATIVE[0]
    block_k: Positive = NATIVE[1]

    def exact_limit(self) -> BLASST:
        return replace(self, scale=0.0)

    def scaled_down(self) -> BLASST:
        return replace(self, scale=30.0, block_q=4, block_k=4)

    def is_dense(self, n: int) -> bool:
        return self.scale == 0 or n <= self.block_k

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        n = query.shape[2]
        if self.is_dense(n):
            return attend_exactly(self, query, key, value, call, self.kernel, self.products)
        threshold = min(1.0, self.scale / n)
        found: tuple[Tensor, Tensor] | str = kernels.ASKED
        if (self.block_q, self.block_k) != NATIVE:
            found = f"tiles of {self.block_q} by {self.block_k}"
        elif self.kernel != "torch":
            found = kernels.skipping(query, key, value, call.scale, threshold, self.products)
        kernels.note(self, found, self.products, query)
        if isinstance(found, str):
            found = self._plain(query, key, value, call.scale, threshold)
        output, tiles = found
        self.count_tiles(*tiles.tolist())
        return output

    def _plain(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, threshold: float
    ) -> tuple[Tensor, Tensor]:
        """Same as `kernels.skipping`, in torch."""
        outputs, tiles = [], torch.zeros(2, dtype=torch.long)
        least = log(threshold)
        for start in range(0, query.shape[2], self.block_q):
            rows = query[:, :, start : start + self.block_q]
            end = start + rows.shape[2]
            scores = mask_future(logits(rows, key[:, :, :end], scale), start)
            lowest = torch.finfo(scores.dtype).min
            largest = pad(scores, (0, -end % self.block_k), value=lowest)
            largest = largest.unflatten(3, (-1, self.block_k)).amax(4)
            so_far = largest.flip(3).cummax(3).values.flip(3)[..., 1:]
            far = (largest[..., :-1] - so_far < least).all(2, keepdim=True)
            left_out = far.repeat_interleave(self.block_k, 3)
            scores[..., : left_out.shape[3]].masked_fill_(left_out, lowest)
            weights = scores.softmax(-1).to(value.dtype).view(*key.shape[:2], -1, end)
            outputs.append((weights @ value[:, :, :end]).view(*rows.shape[:3], -1))
            tiles += torch.tensor([int(far.sum()), largest[:, :, 0].numel()])
        return torch.cat(outputs, 2), tiles
