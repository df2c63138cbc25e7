"""Native attention kernels: exact (dense or block-sparse), over the tiles that matter, over the
best k keys, over keys in codes of 4 bits, over keys and values in codes of a few bits, and over
rows at given indices.

C++ for CPUs with AVX-512, AVX2 or NEON; forward only, with float32 inputs and outputs. The exact
kernels also take bfloat16, and multiply it with AMX if the CPU has it. The source is compiled at
its first use for the widest vectors of the CPU (BENCH_KERNELS=avx2 forces others) and cached under
$XDG_CACHE_HOME or ~/.cache. A function that can't run (no compiler, another CPU, a gradient is
needed, another dtype, …) returns the reason as a string; the caller then uses its torch path, which
gives the same result within rounding:

    output = kernels.dense(query, key, value, scale)
    kernels.note(self, output)  # → self.kernel_used: "native avx512 float32", or "torch (reason)";
                                # "torch" if the result is ASKED
    if isinstance(output, str):
        output = …

Shapes: query [B, H, q, d]; key [B, G, n, d] and value [B, G, n, e], where G divides H (grouped
queries) → [B, H, q, e]. Any sizes and strides; d and e that are multiples of 16 are fastest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2
from typing import Literal

import torch
from torch import Tensor

from methods.kernels import structs
from methods.kernels.best_keys import AXES, MAX_K, Points, dci, topk, topk_blocks
from methods.kernels.checks import (
    ASKED,
    WIDENED,
    available,
    cannot_take,
    library,
    name,
    note,
    products_of,
    ran_natively,
    width,
)
from methods.kernels.codes import Codes, code_scores, code_sums
from methods.kernels.lookups import encode, lookups
from methods.kernels.rows import row_scores, row_sums
from methods.kernels.structs import BLOCK

__all__ = [
    "ASKED", "AXES", "BLOCK", "MAX_K", "Blocks", "Codes", "Kernel", "Points", "Products",
    "available", "block_sparse", "code_scores", "code_sums", "dci", "dense", "encode", "lookups",
    "name", "note", "ran_natively", "row_scores", "row_sums", "skipping", "topk", "topk_blocks",
    "width",
]  # fmt: skip

PACKED_BYTES = 8 << 20  # of packed keys and values at a time, unless one head needs more
Kernel = Literal["auto", "torch", "native"]
Products = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Blocks:
    """Which blocks of 64 keys each block of 64 queries attends to.

    starts   [H or 1, blocks of queries + 1] int32; list i of head h is keys[starts[h, i] :
             starts[h, i+1]]
    keys     int32: the numbers of key blocks, in any order; a repeated one counts twice
    visible  [keys, 64] int64, or None: bit j of row i is 1 if the block's query i reads key j of
             this key block; each query must read at least one key
    """

    starts: Tensor
    keys: Tensor
    visible: Tensor | None = None

    @classmethod
    def of(cls, lists: Sequence[Sequence[Sequence[int]]], size: int = BLOCK) -> Blocks:
        """lists[head][query block] = key blocks, for one head (all alike) or all of them; blocks
        of `size` tokens, a multiple of 64. A loop in Python: call it once for each pattern."""
        if size % BLOCK:
            raise ValueError(f"size is {size}; it must be a multiple of {BLOCK}")
        parts, starts = size // BLOCK, []
        keys: list[int] = []
        for head in lists:
            row = []
            for key_blocks in head:
                fine = [block * parts + part for block in key_blocks for part in range(parts)]
                for _ in range(parts):
                    row.append(len(keys))
                    keys += fine
            starts.append([*row, len(keys)])
        return cls(torch.tensor(starts, dtype=torch.int32), torch.tensor(keys, dtype=torch.int32))


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
    """softmax(q kᵀ · scale + key bias + bias) v [B, H, q, e], or the reason why it can't run.

    key_bias  [B, n] or [B, 1, 1, n] to add to all scores of a key: a very low number at padding
    products  "bfloat16": q, k, v and weights are rounded to it before they are multiplied;
              accumulated in float32. Inputs in bfloat16 always are, where the CPU can
    causal    query i attends to keys 0 … i; needs the same number of queries and keys
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
    causal: bool = False,
) -> Tensor | str:
    """Like `dense`, but a query attends only to the key blocks in the list of its own block, or to
    the keys in these that `blocks.visible` marks. The last blocks may be shorter than 64."""
    return _attend(query, key, value, scale, blocks, key_bias, products, causal, bias)


def skipping(
    query: Tensor, key: Tensor, value: Tensor, scale: float, threshold: float,
    products: str = "float32",
) -> tuple[Tensor, Tensor] | str:  # fmt: skip
    """Causal `dense` attention in tiles of 64 queries and 128 keys, from the diagonal back to the
    first key. It skips tiles in which no weight, relative to the largest weight of its query so
    far, reaches `threshold` (0 to 1; 0: no tile is skipped) → the output, and [2] int64: the
    numbers of skipped tiles and of all tiles."""
    tiles = torch.zeros(2, dtype=torch.long)
    skip = log2(threshold) if threshold else -inf
    output = _attend(query, key, value, scale, None, None, products, True, None, skip, tiles)
    return output if isinstance(output, str) else (output, tiles)


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
    skip: float = 0,
    tiles: Tensor | None = None,
) -> Tensor | str:
    reason = available(products) or cannot_take(query, key, value, bias, dtypes=WIDENED)
    if reason:
        return reason
    dtype, products = query.dtype, products_of(query, products)
    query, key, value = query.float(), key.float(), value.float()
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
    starts = columns = visible = None
    if key_bias is not None:
        key_bias = key_bias.reshape(-1, sizes.keys).expand(sizes.batch, -1).float().contiguous()
    if blocks is not None:
        starts, columns = blocks.starts.contiguous(), blocks.keys.contiguous()
        visible = None if blocks.visible is None else blocks.visible.contiguous()
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
        skip=skip,
        bias=table,
        list_heads=1 if starts is None else starts.shape[0],
        causal=causal,
        threads=torch.get_num_threads(),
        together=together,
        keys=buffer.data_ptr(),
        values=buffer.data_ptr() + together * key_bytes,
        **{
            name: None if x is None else x.data_ptr()
            for name, x in (
                ("key_bias", key_bias),
                ("starts", starts),
                ("columns", columns),
                ("visible", visible),
                ("tiles", tiles),
            )
        },
    )
    getattr(library(), f"dense_{products}")(ctypes.byref(arguments))
    return call.result().to(dtype)
