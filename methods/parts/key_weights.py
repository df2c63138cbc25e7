"""The softmax attention weights of keys, by which eviction ranks them.

Shapes: B batch, G key heads, H query heads, n tokens, d head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from methods.parts.attention import capped, mask_future, mask_past, softmax
from methods.parts.partial import widened
from methods.parts.sequence import AttentionCall

WEIGHTS, CPU_WEIGHTS = 1 << 21, 1 << 19
"""Weights that are computed at a time; on a CPU, fewer: they stay in its cache."""


def logits(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """q kᵀ · scale of query [B, H, t, d], key [B, G, m, d] → [B, H, t, m] in float32 or wider."""
    keys = key.flatten(0, 1)
    queries = query.reshape(len(keys), -1, query.shape[3])
    if keys.dtype.itemsize == 2:
        scores = widened(batched_product(queries, keys.mT)) * scale
    else:
        scores = torch.baddbmm(queries.new_empty(()), queries, keys.mT, beta=0, alpha=scale)
    return scores.view(*query.shape[:3], key.shape[2])


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """a [m, q, k] @ b [m, k, n]. On a CPU, torch copies a batch in half precision with gaps between
    its matrices, such as storage with room; these are multiplied one by one."""
    if b.dtype.itemsize > 2 or b.device.type != "cpu" or b.stride(0) == b.shape[1] * b.shape[2]:
        return a @ b
    return torch.stack([x @ y for x, y in zip(a, b, strict=True)])


def attention_received(query: Tensor, key: Tensor, call: AttentionCall, last: int) -> Tensor:
    """The softmax weights of the last queries on each key, summed over these queries: query
    [B, H, n, d], key [B, G, n, d], causal, without padding → [B, H, n] in float32 or wider.
    Computed in blocks of queries, without an n×n tensor."""
    n = query.shape[2]
    weights = CPU_WEIGHTS if query.device.type == "cpu" else WEIGHTS
    rows = max(1, weights // (query.shape[0] * query.shape[1] * n))
    total = widened(query.new_zeros(*query.shape[:2], n))
    for start in range(max(0, n - last), n, rows):
        end = min(start + rows, n)
        first = 0 if call.window is None else max(0, start + 1 - call.window)
        scores = capped(logits(query[:, :, start:end], key[:, :, first:end], call.scale), call)
        scores[..., start - first :] = mask_future(scores[..., start - first :], 0)
        scores = mask_past(scores, start - first, call)
        total[:, :, first:end] += softmax(scores, call).sum(2)
    return total


def per_key_head(x: Tensor, key: Tensor) -> Tensor:
    """Means over the query heads [B, H, …] that share a key head [B, G, …] → [B, G, …]."""
    means: Tensor = x.unflatten(1, (key.shape[1], -1)).mean(2)
    return means
