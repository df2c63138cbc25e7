"""Native attention over the best k keys of each query. See `methods.kernels` for shapes and for the
result where a kernel can't run."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels import structs
from methods.kernels.checks import available, cannot_take, library
from methods.kernels.structs import BLOCK

MAX_K = 200  # keys of a query
AXES = 16  # coordinates of a point


class Points(NamedTuple):
    """Queries and keys in few coordinates, for `topk_blocks`: the score of a pair is about `shared`
    plus the inner product of its points, with an error of known variance.

    keys      [B, H, n, AXES]
    queries   [B, H, q, AXES]
    shared    [B, H, q], the part of a query's scores that is the same for all keys
    variance  [B, H, q], variance of the error of a query's scores
    """

    keys: Tensor
    queries: Tensor
    shared: Tensor
    variance: Tensor


def topk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    k: int,
    wanted: int,
    seen: Tensor,
    bias: Tensor | None = None,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor] | str:
    """Softmax over the best k keys of each query, preselected by 8-bit scores and then scored
    exactly: output [B, H, q, e] float32, 0 where a query sees no key, and the ids of the keys
    [B, H, q, k] int64, -1 where there are fewer; or the reason why it can't run. Needs the same
    number of key heads as query heads.

    wanted  keys that the 8-bit scores preselect; the keys of a block of 64 that a query sees only
            in part are always preselected
    seen    [q] int64, non-decreasing: a query sees the first `seen` keys
    bias    [H, 2m-1] to add to scores at distance -(m-1) … m-1, key j minus the query's index
    places  [q] int64, with a bias: the index of each query among the keys
    """
    reason = available("int8") or cannot_take(query, key, value, bias)
    if reason is None and max(k, wanted) > MAX_K:
        reason = f"more than {MAX_K} keys for a query"
    if reason is None and bias is not None and scale <= 0:
        reason = "a bias on scores, and a scale that isn't above 0"
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    sizes = call.sizes
    heads, blocks = sizes.batch * sizes.heads, sizes.keys // BLOCK
    padded = -(-blocks // BLOCK) * BLOCK
    eight = torch.empty(heads * blocks * BLOCK * sizes.d, dtype=torch.uint8)
    means, scales = torch.zeros(heads * padded * sizes.d), torch.empty(heads * blocks * BLOCK)
    spans = 1 + max(blocks - 1, 0).bit_length()
    channel_sizes, channels = (torch.empty(heads * count * sizes.d) for count in (blocks, spans))
    return _call(
        "topk",
        call,
        scale,
        k,
        seen,
        bias,
        places,
        wanted=wanted,
        eight=eight.data_ptr(),
        means=means.data_ptr(),
        scales=scales.data_ptr(),
        channel_sizes=channel_sizes.data_ptr(),
        channels=channels.data_ptr(),
    )


def topk_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    k: int,
    wanted: int,
    points: Points,
    deviations: float,
) -> tuple[Tensor, Tensor] | str:
    """Like `topk` where every query sees all keys, but keys are in blocks of similar ones, and
    8-bit scores are computed only in blocks that may hold one of the best k.

    deviations  assumed bound of a block's scores, in standard deviations above their mean
    """
    reason = available("int8") or cannot_take(query, key, value)
    if reason is None and max(k, wanted) > MAX_K:
        reason = f"more than {MAX_K} keys for a query"
    if reason is None and key.shape[2] < BLOCK:
        reason = f"fewer than {BLOCK} keys"
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    sizes = call.sizes
    heads, blocks = sizes.batch * sizes.heads, sizes.keys // BLOCK
    padded, tokens = -(-blocks // BLOCK) * BLOCK, blocks * BLOCK
    numbers = {
        **{"means": padded * sizes.d, "scales": tokens, "channel_sizes": blocks * sizes.d},
        **{"channels": sizes.d, "centres": padded * AXES, "variances": padded * AXES},
        **{"along": tokens, "order": tokens, "spare": tokens},
    }
    buffers = {name: torch.empty(heads * count + BLOCK) for name, count in numbers.items()}
    buffers["eight"] = torch.empty(heads * tokens * sizes.d, dtype=torch.uint8)
    points = Points(*(x.contiguous() for x in points))
    seen = torch.full((sizes.queries,), sizes.keys)
    return _call(
        "topk_blocks",
        call,
        scale,
        k,
        seen,
        None,
        None,
        wanted=wanted,
        deviations=deviations,
        points=structs.Points(*(x.data_ptr() for x in points)),
        **{name: buffer.data_ptr() for name, buffer in buffers.items()},
    )


def dci(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    k: int,
    seen: Tensor,
    key_lists: Tensor,
    query_lists: Tensor,
    retrieved: Tensor,
    bias: Tensor | None = None,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor] | str:
    """Like `topk`, with the candidates of `methods.iceformer.dci.Dci`, chosen without the bias.

    key_lists    int16 [B, H, L, m, n] in -127 … 127, the projections of keys
    query_lists  int16 [B, H, q, L, m], those of queries
    retrieved    [q] int64, k0
    """
    reason = available() or cannot_take(query, key, value, bias)
    if reason is None and k > MAX_K:
        reason = f"more than {MAX_K} keys for a query"
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    n = key_lists.shape[-1]
    lanes = -(-n // 512) * 512  # the kernel takes eight vectors of 64 at once
    keys = pad((key_lists + 127).to(torch.uint8), (0, lanes - n)).contiguous()
    queries = (query_lists + 127).to(torch.uint8).contiguous()
    counts = retrieved.int().contiguous()
    return _call(
        "dci",
        call,
        scale,
        k,
        seen,
        bias,
        places,
        key_lists=keys.data_ptr(),
        query_lists=queries.data_ptr(),
        retrieved=counts.data_ptr(),
        m=key_lists.shape[3],
        L=key_lists.shape[2],
        lanes=lanes,
    )


def _call(
    name: str,
    call: structs.Tensors,
    scale: float,
    k: int,
    seen: Tensor,
    bias: Tensor | None,
    places: Tensor | None,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    ids = torch.empty(*call.output.shape[:3], k, dtype=torch.int64)
    counts = seen.int().contiguous()
    table, _storage = structs.BiasTable.of(bias)
    query_places = None if places is None else places.int().contiguous()
    arguments = structs.TopK(
        sizes=call.sizes,
        **call.views(),
        scale=scale,
        seen=counts.data_ptr(),
        bias=table,
        places=None if query_places is None else query_places.data_ptr(),
        ids=ids.data_ptr(),
        k=k,
        threads=torch.get_num_threads(),
        **rest,
    )
    getattr(library(), name)(ctypes.byref(arguments))
    return call.result(), ids
