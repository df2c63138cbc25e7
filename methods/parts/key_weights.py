"""The weight that softmax attention gives to keys, which eviction ranks them by.

Shapes: B batch, G key heads, H query heads, n tokens, d head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from methods.parts.attention import capped, mask_future, mask_past, softmax
from methods.parts.sequence import AttentionCall

WEIGHTS = 1 << 21
"""Weights that are computed at a time."""


def logits(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """q kᵀ · scale of query [B, H, t, d], key [B, G, m, d] → [B, H, t, m] in float32 or wider."""
    scores = query.reshape(*key.shape[:2], -1, query.shape[3]) @ key.mT
    scores = scores.to(torch.promote_types(key.dtype, torch.float32))
    return scores.mul_(scale).view(*query.shape[:3], key.shape[2])


def attention_received(query: Tensor, key: Tensor, call: AttentionCall, last: int) -> Tensor:
    """The softmax weights of the last queries on each key, summed over these queries: query
    [B, H, n, d], key [B, G, n, d], causal, without padding → [B, H, n] in float32 or wider.
    Computed by blocks of queries, without an n×n tensor."""
    n = query.shape[2]
    rows = max(1, WEIGHTS // (query.shape[0] * query.shape[1] * n))
    total = query.new_zeros(
        *query.shape[:2], n, dtype=torch.promote_types(query.dtype, torch.float32)
    )
    for start in range(max(0, n - last), n, rows):
        end = min(start + rows, n)
        scores = capped(logits(query[:, :, start:end], key[:, :, :end], call.scale), call)
        scores = mask_past(mask_future(scores, start), start, call)
        total[:, :, :end] += softmax(scores, call).sum(2)
    return total


def per_key_head(x: Tensor, key: Tensor) -> Tensor:
    """Means over the query heads [B, H, …] that share a key head [B, G, …] → [B, G, …]."""
    means: Tensor = x.unflatten(1, (key.shape[1], -1)).mean(2)
    return means
