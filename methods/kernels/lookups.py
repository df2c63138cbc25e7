"""Native attention of new tokens to keys that are stored as codes of 4 bits. See `methods.kernels`
for the result where a kernel can't run.

Shapes: S groups of c channels; in a block of 32 keys, byte i has the codes of key i, in its low
half, and of key 16 + i. Codes [B, G, blocks, S, 16] and values [B, G, n, e] are contiguous within a
head.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from methods.kernels import structs
from methods.kernels.checks import WIDENED, available, cannot_take, library

MOST_GROUPS = 257
"""Sums of more bytes don't fit 16 bits."""


def lookups(
    query: Tensor, centroids: Tensor, codes: Tensor, value: Tensor, scale: float
) -> Tensor | str:
    """softmax(scores) v for query [B, H, 1, d] → [B, H, 1, e] float32, or the reason why it can't
    run. A score is the sum over groups of the query's product with the centroid [B, G, S, 16, c] of
    the key's code, times `scale`; products are rounded to 255 steps of the widest group's range."""
    reason = cannot_take(query, value, dtypes=WIDENED) or cannot_take(centroids)
    reason = reason or available("int8")
    if reason is None and centroids.shape[2] > MOST_GROUPS:
        reason = f"more than {MOST_GROUPS} groups of channels"
    if reason is None and value.shape[3] % structs.LANES:
        reason = f"values of {value.shape[3]} channels, no multiple of {structs.LANES}"
    if reason:
        return reason
    output = torch.empty(*query.shape[:3], value.shape[3])
    arguments, _owned = _arguments(query, centroids, codes, value.shape[2])
    arguments.bfloat = value.dtype == torch.bfloat16
    arguments.scale, arguments.dv = scale, value.shape[3]
    arguments.output, arguments.value = output.data_ptr(), value.data_ptr()
    arguments.values_apart = value.stride(1)
    library().lookups(ctypes.byref(arguments))
    return output


def encode(key: Tensor, centroids: Tensor, codes: Tensor, seen: int) -> str | None:
    """Writes the codes of the keys [B, G, t, d], the last of `seen` keys: for each group the number
    of the nearest centroid. Their half bytes must be 0. Returns the reason why it can't run, or
    None."""
    reason = cannot_take(key, dtypes=WIDENED) or cannot_take(centroids) or available("int8")
    if reason:
        return reason
    arguments, _owned = _arguments(key, centroids, codes, seen)
    library().encode(ctypes.byref(arguments))
    return None


def _arguments(
    rows: Tensor, centroids: Tensor, codes: Tensor, keys: int
) -> tuple[structs.Lookups, Tensor]:
    """The arguments for rows [B, H, t, d] of queries or keys, and the tensor that owns their
    memory."""
    batch, heads, groups, _, channels = centroids.shape
    rows = rows.float().contiguous()
    return structs.Lookups(
        query=rows.data_ptr(),
        centroids=centroids.data_ptr(),
        codes=codes.data_ptr(),
        codes_apart=codes.stride(1),
        heads=batch * heads,
        rows=rows.shape[1] // heads * rows.shape[2],
        groups=groups,
        channels=channels,
        keys=keys,
        threads=torch.get_num_threads(),
    ), rows
