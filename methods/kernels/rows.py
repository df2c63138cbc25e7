"""Native products with some rows of keys, and sums of some rows of values, without copying the
rows. See `methods.kernels` for the result where a kernel can't run.

Shapes: B batch, G key heads, S heads that choose rows, a multiple of G; m rows of w numbers, of
which k are read.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from methods.kernels import structs
from methods.kernels.checks import WIDENED, available, cannot_take, library


def row_scores(query: Tensor, key: Tensor, place: Tensor | None = None) -> Tensor | str:
    """query [B, S, q, w], key [B, G, m, w] → products with the keys at `place` [B, S, k], or with
    all, [B, S, q, k] in float32; or the reason why it can't run."""
    if key.shape[3] % structs.LANES:
        return f"heads of {key.shape[3]} channels, no multiple of {structs.LANES}"
    entries = key.shape[2] if place is None else place.shape[2]
    return _run("row_scores", query, key, place, entries, entries)


def row_sums(weights: Tensor, value: Tensor, place: Tensor | None = None) -> Tensor | str:
    """weights [B, S, q, k], value [B, G, m, w] → sums of the values at `place` [B, S, k], or of all
    of them, [B, S, q, w] in float32; or the reason why it can't run."""
    if value.shape[3] < structs.LANES:
        return f"rows of {value.shape[3]} numbers, fewer than {structs.LANES}"
    return _run("row_sums", weights, value, place, weights.shape[3], value.shape[3])


def _run(
    function: str, given: Tensor, data: Tensor, place: Tensor | None, entries: int, width: int
) -> Tensor | str:
    """Runs a function of the library; `width` is the last dimension of the output."""
    reason = cannot_take(given, data, dtypes=WIDENED) or available()
    if reason:
        return reason
    batch, heads = given.shape[:2]
    if data.stride(3) != 1 or (batch > 1 and data.stride(0) != data.shape[1] * data.stride(1)):
        data = data.contiguous()
    output = torch.empty(*given.shape[:3], width)
    given = given.float().contiguous()
    place = None if place is None else place.contiguous()
    arguments = structs.Rows(
        given=given.data_ptr(),
        data=data.data_ptr(),
        places=None if place is None else place.data_ptr(),
        output=output.data_ptr(),
        head_apart=data.stride(1),
        row_apart=data.stride(2),
        heads=batch * heads,
        sharing=heads // data.shape[1],
        count=given.shape[2],
        entries=entries,
        width=data.shape[3],
        bfloat=data.dtype == torch.bfloat16,
        threads=torch.get_num_threads(),
    )
    getattr(library(), function)(ctypes.byref(arguments))
    return output
