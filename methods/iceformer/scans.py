"""Scans of all keys, as indices (`methods/iceformer/knn.py`). The paper leaves the choice of k-NN
search open (§4.2); its own search is `methods/iceformer/dci.py`.

- `Exact`: every key is a candidate.
- `Quantized`: the largest inner products of 8-bit numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from methods import kernels
from methods.iceformer.inputs import TopKInputs, append, unseen
from methods.iceformer.knn import Bias

BLOCK = kernels.BLOCK  # keys that share a mean
RANGE = 4096  # limit on the sizes of channels
TINY = 1e-30


class Exact:
    """Every key is a candidate: recall 1."""

    def add(self, key: Tensor) -> None:
        pass

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, scale: float = 1, bias: Bias | None = None
    ) -> Tensor | None:
        return None

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        return "search=exact"

    def held(self) -> list[Tensor]:
        return []


class Quantized:
    """Inner products of 8-bit numbers, with a scale for each query, each key and each channel.

    Keys are quantized relative to the weighted mean of their block of 64, in which a key with very
    large numbers weighs no more than the others; so a constant channel costs nothing. A channel of
    keys is divided by the square root of its size, and that of queries multiplied by it. This
    leaves scores unchanged, and large numbers take the same share of the 8 bits on both sides.

    A query never depends on keys that it doesn't see. In a block that it sees only in part, all
    keys are candidates. The channels' sizes are means over the blocks up to the first of a span: 0,
    1, 2 to 3, 4 to 7, …
    """

    def __init__(self) -> None:
        # [B, H, n, d] keys in 8 bits and those outside whole blocks; [B, H, blocks, d] means and
        # sizes
        self.near = self.rest = self.mean = self.size = torch.empty(0)

    def add(self, key: Tensor) -> None:
        keys = append(self.rest, key.float())
        whole = keys.shape[2] // BLOCK * BLOCK
        self.rest = keys[:, :, whole:].clone()
        if not whole:
            return
        blocks = keys[:, :, :whole].unflatten(2, (-1, BLOCK))
        largest = blocks.abs().amax(4, keepdim=True)
        weight = 1 / largest.maximum(largest.mean(3, keepdim=True) / 8).clamp(min=TINY)
        weight = weight / weight.sum(3, keepdim=True)
        mean = (weight * blocks).sum(3)
        blocks = blocks - mean[:, :, :, None]
        self.mean = append(self.mean, mean)
        self.size = append(self.size, (weight * blocks.abs()).sum(3))
        of_blocks = torch.cat(
            [scales[:, :, None].expand(-1, -1, len(span), -1) for span, scales in self.channels()],
            2,
        )
        blocks = blocks / of_blocks[:, :, -blocks.shape[2] :, None]
        scale = blocks.abs().amax(4, keepdim=True).clamp(min=TINY) / 127
        self.near = append(self.near, ((blocks / scale).round() * scale).flatten(2, 3))

    def held(self) -> list[Tensor]:
        return [self.near, self.rest, self.mean, self.size]

    def channels(self) -> Iterator[tuple[range, Tensor]]:
        """Each span of blocks, and the divisors of its keys' channels [B, H, d]."""
        blocks = self.size.shape[2]
        so_far = self.size.cumsum(2)
        edges = [0, *(1 << i for i in range((blocks - 1).bit_length())), blocks]
        for start, stop in pairwise(edges):
            size = so_far[:, :, start] / (start + 1)
            root = size.maximum(size.amax(-1, keepdim=True) / RANGE).clamp(min=TINY).sqrt()
            yield range(start, stop), root / root.mean(-1, keepdim=True)

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, scale: float = 1, bias: Bias | None = None
    ) -> Tensor | None:
        n = int(seen.max())
        wanted = rescored(k)
        if n <= max(wanted, BLOCK) or not self.near.numel():
            return None
        query = query.float()
        whole = min(n // BLOCK * BLOCK, self.near.shape[2])
        spans = [(span, query * scales[:, :, None]) for span, scales in self.channels()]
        spans = [(span, scaled) for span, scaled in spans if span.start * BLOCK < whole]
        largest = [
            scaled.abs().amax(-1).masked_fill(seen // BLOCK <= span.start, 0)
            for span, scaled in spans
        ]
        step = torch.stack(largest).amax(0).clamp(min=TINY)[..., None] / 127
        scores = torch.cat(
            [
                ((scaled / step).round() * step)
                @ self.near[:, :, span.start * BLOCK : min(span.stop * BLOCK, whole)].mT
                for span, scaled in spans
            ],
            -1,
        )
        scores += (query @ self.mean[:, :, : whole // BLOCK].mT).repeat_interleave(BLOCK, -1)
        if bias is not None:
            scores += bias()[..., :whole] / scale
        in_part = unseen(seen // BLOCK * BLOCK, whole)
        scores.masked_fill_(in_part, -math.inf)
        floor = scores.topk(min(wanted, whole)).values[..., -1:]
        chosen = (scores >= floor) | in_part
        return torch.nn.functional.pad(chosen, (0, n - whole), value=True)

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        bias = inputs.bias_by_distance()
        if isinstance(bias, str):
            return bias
        return kernels.topk(
            inputs.query,
            inputs.key,
            inputs.value,
            inputs.scale,
            inputs.k,
            rescored(inputs.k),
            inputs.seen,
            *bias,
        )


def rescored(k: int) -> int:
    """How many candidates `Quantized` selects for exact scoring. They hold the best k if fewer than
    k/4 + 8 other keys have scores within the rounding error of the k-th best. This holds for
    trained models, not where very many keys have similar scores."""
    return k + k // 4 + 8
