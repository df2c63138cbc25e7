"""Native attention kernels: exact (dense or block-sparse), and over the best k keys.

C++ for CPUs with AVX-512, AVX2 or NEON, forward only, float32 in and out. It is compiled at its
first use, for the widest vectors that the CPU has (BENCH_KERNELS=avx2 forces others), and cached
under $XDG_CACHE_HOME or ~/.cache. Where a function can't run (no compiler, another CPU, a
gradient is needed, another dtype, …) it returns the reason as a string; the caller then takes its
torch path, which gives the same result within rounding:

    output = kernels.dense(query, key, value, scale)
    kernels.note(self, output)  # → self.kernel_used: "native avx512 float32", or "torch (reason)";
                                # "torch" where the result is ASKED
    if isinstance(output, str):
        output = …

Shapes: query [B, H, q, d]; key [B, G, n, d] and value [B, G, n, e], where G divides H (grouped
queries) → [B, H, q, e]. Any sizes and strides; d and e that are multiples of 16 are fastest.
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels import build, structs
from methods.kernels.blocks import BLOCK, Blocks
from methods.kernels.used import ASKED, name, note, ran_natively

__all__ = [
    "ASKED", "BLOCK", "Blocks", "Kernel", "Products", "available", "block_sparse", "dci", "dense",
    "name", "note", "ran_natively", "topk",
]  # fmt: skip

PACKED_BYTES = 8 << 20  # of packed keys and values at a time, unless one head needs more
MAX_K = 200  # keys of a query in `topk` and `dci`
Kernel = Literal["auto", "torch", "native"]
Products = Literal["float32", "bfloat16"]


def available(products: str = "float32") -> str | None:
    """Why the kernels can't run on this machine, or None; compiles them if they are not cached.
    `products`: "float32", "bfloat16", or "int8" for the scan of `topk`."""
    loaded = build.load()
    if isinstance(loaded, str):
        return loaded
    _, width = loaded
    if products == "bfloat16" and width.bf16 is None:
        return f"this CPU has no {width.name} instructions for bfloat16 products"
    return None


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    key_bias: Tensor | None = None,
    products: str = "float32",
    causal: bool = False,
    bias: Tensor | None = None,
) -> Tensor | str:
    """softmax(q kᵀ · scale + key bias + bias) v [B, H, q, e] float32, or the reason why not.

    key_bias  [B, n] or [B, 1, 1, n] to add to all scores of a key: a very low number at padding
    products  "bfloat16": q, k, v and weights are rounded to it before they are multiplied;
              accumulated in float32
    causal    query i attends to keys 0 … i; needs as many queries as keys
    bias      [H, 2m-1], m at least n and q, to add at distance -(m-1) … m-1, key j minus query i
    """
    return _attend(query, key, value, scale, None, key_bias, products, causal, bias)


def block_sparse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    blocks: Blocks,
    key_bias: Tensor | None = None,
    products: str = "float32",
    bias: Tensor | None = None,
) -> Tensor | str:
    """As `dense`, where a query attends only to the key blocks in the list of its own block. The
    last blocks may be shorter than 64."""
    return _attend(query, key, value, scale, blocks, key_bias, products, False, bias)


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
    [B, H, q, k] int64, -1 where there are fewer; or the reason why not. Needs as many heads of keys
    as of queries.

    wanted  keys that the 8-bit scores preselect; the keys of a block of 64 that a query sees only
            in part are always preselected
    seen    [q] int64, non-decreasing: a query sees the first `seen` keys
    bias    [H, 2m-1] to add to scores at distance -(m-1) … m-1, key j minus the query's place
    places  [q] int64, with a bias: the place of each query among the keys
    """
    reason = available("int8") or _cannot_take(query, key, value, bias)
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
    return _topk_call(
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
    """As `topk`, with the candidates of `methods.iceformer.dci.Dci`, chosen without the bias.

    key_lists    int16 [B, H, L, m, n] in -127 … 127, the projections of keys
    query_lists  int16 [B, H, q, L, m], those of queries
    retrieved    [q] int64, k0
    """
    reason = available() or _cannot_take(query, key, value, bias)
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
    return _topk_call(
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


def _topk_call(
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
    getattr(_library(), name)(ctypes.byref(arguments))
    return call.result(), ids


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    blocks: Blocks | None,
    key_bias: Tensor | None,
    products: str,
    causal: bool,
    bias: Tensor | None,
) -> Tensor | str:
    reason = available(products) or _cannot_take(query, key, value, bias)
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    sizes = call.sizes
    if causal and sizes.queries != sizes.keys:
        return "causal with another number of queries than keys"
    half, heads = products == "bfloat16", sizes.batch * sizes.key_heads
    tokens = -(-sizes.keys // BLOCK) * BLOCK
    key_bytes, value_bytes = tokens * sizes.d * (2 if half else 4), tokens * sizes.dv * 2 * half
    # The packed keys and values of this many heads stay in the cache; the buffer is reused.
    together = max(1, min(heads, PACKED_BYTES // (key_bytes + value_bytes)))
    buffer = torch.empty(together * (key_bytes + value_bytes), dtype=torch.uint8)
    starts = columns = None
    if key_bias is not None:
        key_bias = key_bias.reshape(-1, sizes.keys).expand(sizes.batch, -1).float().contiguous()
    if blocks is not None:
        starts, columns = blocks.starts.contiguous(), blocks.keys.contiguous()
        if starts.shape[1] != -(-sizes.queries // BLOCK) + 1:
            raise ValueError(
                f"blocks has {starts.shape[1] - 1} lists; {sizes.queries} queries have "
                f"{-(-sizes.queries // BLOCK)} blocks of {BLOCK}"
            )
    table, _storage = structs.BiasTable.of(bias)
    arguments = structs.Dense(
        sizes=sizes,
        **call.views(),
        scale=scale,
        bias=table,
        list_heads=1 if starts is None else starts.shape[0],
        causal=causal,
        threads=torch.get_num_threads(),
        together=together,
        keys=buffer.data_ptr(),
        values=buffer.data_ptr() + together * key_bytes,
        **{
            name: None if x is None else x.data_ptr()
            for name, x in (("key_bias", key_bias), ("starts", starts), ("columns", columns))
        },
    )
    getattr(_library(), f"dense_{products}")(ctypes.byref(arguments))
    return call.result()


def _cannot_take(*tensors: Tensor | None) -> str | None:
    inputs = [x for x in tensors if x is not None]
    if any(x.device.type != "cpu" for x in inputs):
        return "not on the CPU"
    if any(x.dtype != torch.float32 for x in inputs):
        return "not float32"
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return "a gradient is wanted"
    if not all(x.numel() for x in inputs):
        return "nothing to read"
    return None


def _library() -> ctypes.CDLL:
    return build.loaded()[0]
