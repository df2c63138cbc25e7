"""Scans of all keys (see `methods/iceformer/knn.py` for what an index is). The paper leaves the
choice of k-NN search open (§4.2); these aren't its own, which is `methods/iceformer/dci.py`.

- `Exact`: every key is a candidate.
- `Quantized`: the largest inner products of 8-bit numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from methods import kernels
from methods.iceformer.inputs import TopKInputs, append, unseen

BLOCK = kernels.BLOCK  # keys that share a mean
TINY = 1e-30


class Exact:
    """Every key is a candidate: recall 1."""

    def add(self, key: Tensor) -> None:
        pass

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, bias: Tensor | None = None
    ) -> Tensor | None:
        return None

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        return "search=exact"


class Quantized:
    """Inner products of 8-bit numbers, with a scale for each query and key. Keys are quantized
    relative to the weighted mean of their block of 64, in which a key with very large numbers
    weighs no more than the others. In a block that a query sees only in part, all keys are
    candidates: no mean then leaks keys that the query does not see."""

    def __init__(self) -> None:
        self.near = self.mean = self.rest = torch.empty(0)

    def add(self, key: Tensor) -> None:
        keys = append(self.rest, key.float())
        whole = keys.shape[2] // BLOCK * BLOCK
        self.rest = keys[:, :, whole:]
        if not whole:
            return
        blocks = keys[:, :, :whole].unflatten(2, (-1, BLOCK))
        size = blocks.abs().amax(4, keepdim=True)
        weight = 1 / size.maximum(size.mean(3, keepdim=True) / 8).clamp(min=TINY)
        mean = (weight * blocks).sum(3) / weight.sum(3)
        blocks = blocks - mean[:, :, :, None]
        scale = blocks.abs().amax(4, keepdim=True).clamp(min=TINY) / 127
        self.near = append(self.near, ((blocks / scale).round() * scale).flatten(2, 3))
        self.mean = append(self.mean, mean)

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, bias: Tensor | None = None
    ) -> Tensor | None:
        n = int(seen.max())
        wanted = rescored(k)
        if n <= max(wanted, BLOCK) or not self.near.numel():
            return None
        query = query.float()
        scale = query.abs().amax(-1, keepdim=True).clamp(min=TINY) / 127
        rounded = (query / scale).round() * scale
        whole = min(n // BLOCK * BLOCK, self.near.shape[2])
        scores = rounded @ self.near[:, :, :whole].mT
        scores += (query @ self.mean[:, :, : whole // BLOCK].mT).repeat_interleave(BLOCK, -1)
        if bias is not None:
            scores += bias[..., :whole]
        in_part = unseen(seen // BLOCK * BLOCK, whole)
        scores.masked_fill_(in_part, -math.inf)
        floor = scores.topk(min(wanted, whole)).values[..., -1:]
        chosen = (scores >= floor) | in_part
        return torch.nn.functional.pad(chosen, (0, n - whole), value=True)

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        bias = places = None
        if inputs.bias is not None:
            by_distance = inputs.bias.by_distance()
            if isinstance(by_distance, str):
                return by_distance
            bias, places = by_distance
        return kernels.topk(
            inputs.query,
            inputs.key,
            inputs.value,
            inputs.scale,
            inputs.k,
            rescored(inputs.k),
            inputs.seen,
            bias,
            places,
        )


def rescored(k: int) -> int:
    """How many candidates `Quantized` selects for exact scoring: enough to hold the best k."""
    return k + k // 4 + 8
