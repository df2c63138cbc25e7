"""The native kernels of attention: exact (dense or block-sparse), and over the best k keys.

C++ for CPUs with AVX-512, forward only, float32 in and out. It is compiled at its first
use and kept under $XDG_CACHE_HOME or ~/.cache. Each function returns in words why it can't do what
it is asked (no compiler, another CPU, a gradient wanted, another dtype, …); the caller then takes
its torch path, which gives the same within rounding:

    output = kernels.dense(query, key, value, scale)
    kernels.note(self, output)  # → self.kernel_used: "native avx512 float32", or "torch (why)"
    if isinstance(output, str):
        output = …

Shapes: query [B, H, q, d]; key [B, G, n, d] and value [B, G, n, e], where G divides H (grouped
queries) → [B, H, q, e]. Any sizes and strides; d and e that are multiples of 16 are fastest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels import build, structs

BLOCK = 64  # keys, and queries, in a block
ROOM = 8 << 20  # bytes of packed keys and values at a time, if one head needs no more
MOST = 200  # keys of a query in `topk` and `dci`
KERNELS = ("torch", "native")
PRODUCTS = ("float32", "bfloat16")


def available(products: str = "float32") -> str | None:
    """Why the kernels can't run on this machine, or None; compiles them if need be. `products`:
    "float32", "bfloat16", or "int8" for the scan of `topk`."""
    library = build.load()
    if isinstance(library, str):
        return library
    needed = {"float32": build.BASE, "bfloat16": build.BF16, "int8": build.VNNI}[products]
    if not library.features() & needed:
        return f"this CPU has no AVX-512 instructions for {products} products"
    return None


def note(method: object, done: object, products: str = "float32") -> None:
    """Remember as `method.kernel_used` which kernels ran, several where calls differed: done is a
    reason why torch did, or a result of the native one with these products."""
    used = f"torch ({done})" if isinstance(done, str) else f"native avx512 {products}"
    known = getattr(method, "kernel_used", "")
    if used not in known.split("; "):
        # No field: it is no part of a cell.
        object.__setattr__(method, "kernel_used", f"{known}; {used}" if known else used)


def check(name: str, value: object, accepted: Items[object]) -> None:
    """Raises ValueError where a parameter has none of the accepted values."""
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(map(repr, accepted))}")


@dataclass(frozen=True)
class Blocks:
    """Which blocks of 64 keys each block of 64 queries reads.

    starts  [H or 1, blocks of queries + 1] int32; list i of head h is keys[starts[h, i] :
            starts[h, i+1]]
    keys    int32: the numbers of key blocks, in any order; one that stands twice counts twice
    """

    starts: Tensor
    keys: Tensor

    @classmethod
    def of(cls, lists: Items[Items[Items[int]]], size: int = BLOCK) -> Blocks:
        """lists[head][query block] = key blocks, for one head (all alike) or all of them; blocks
        of `size` tokens, a multiple of 64. Make it once a pattern: it is a loop in Python."""
        if size % BLOCK:
            raise ValueError(f"size is {size}; it must be a multiple of {BLOCK}")
        parts, starts = size // BLOCK, []
        keys: list[int] = []
        for head in lists:
            row = []
            for one in head:
                fine = [block * parts + part for block in one for part in range(parts)]
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
    """softmax(q kᵀ · scale + key bias + bias) v [B, H, q, e] float32, or why not.

    key_bias  [B, n] or [B, 1, 1, n] to add to all scores of a key: a very low number at padding
    products  "bfloat16": q, k, v and weights are rounded to it before they are multiplied, sums
              stay float32
    causal    query i sees keys 0 … i; as many queries as keys
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
    """As `dense`, where a query sees the key blocks of its own block's list and no others. The
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
    """Softmax over the best k keys of each query, found by 8-bit scores and then scored exactly:
    output [B, H, q, e] float32, 0 where a query sees no key, and the keys read [B, H, q, k] int64,
    -1 where there are fewer; or why not. As many heads of keys as of queries.

    wanted  keys that go on from 8-bit to exact scores; those of blocks of 64 that a query sees
            only in part always do
    seen    [q] int64, never falling: a query sees the first so many keys
    bias    [H, 2m-1] to add to scores at distance -(m-1) … m-1, key j minus the query's place
    places  [q] int64, with a bias: where each query stands among the keys
    """
    reason = available("int8") or _refused(query, key, value, bias)
    if reason is None and max(k, wanted) > MOST:
        reason = f"more than {MOST} keys for a query"
    if reason is None and bias is not None and scale <= 0:
        reason = "a bias on scores, and a scale that isn't above 0"
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    shape = call.shape
    heads, blocks = shape.batch * shape.heads, shape.keys // BLOCK
    padded = -(-blocks // BLOCK) * BLOCK
    eight = torch.empty(heads * blocks * BLOCK * shape.d, dtype=torch.uint8)
    means, scales = torch.zeros(heads * padded * shape.d), torch.empty(heads * blocks * BLOCK)
    added, _held = structs.Bias.of(bias)
    stand = None if places is None else places.int().contiguous()
    return _best(
        "topk",
        call,
        scale,
        k,
        seen,
        bias=added,
        places=None if stand is None else stand.data_ptr(),
        wanted=wanted,
        eight=eight.data_ptr(),
        means=means.data_ptr(),
        scales=scales.data_ptr(),
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
) -> tuple[Tensor, Tensor] | str:
    """As `topk`, with the candidates of Prioritized DCI (see `methods.knn.Dci`).

    key_lists    int16 [B, H, L, m, n] in -127 … 127, the projections of keys
    query_lists  int16 [B, H, q, L, m], those of queries
    retrieved    [q] int64, k0
    """
    reason = available() or _refused(query, key, value)
    if reason is None and k > MOST:
        reason = f"more than {MOST} keys for a query"
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    n = key_lists.shape[-1]
    lanes = -(-n // 512) * 512  # the kernel takes eight vectors of 64 at once
    keys = pad((key_lists + 127).to(torch.uint8), (0, lanes - n)).contiguous()
    queries = (query_lists + 127).to(torch.uint8).contiguous()
    counts = retrieved.int().contiguous()
    return _best(
        "dci",
        call,
        scale,
        k,
        seen,
        key_lists=keys.data_ptr(),
        query_lists=queries.data_ptr(),
        retrieved=counts.data_ptr(),
        m=key_lists.shape[3],
        L=key_lists.shape[2],
        lanes=lanes,
    )


def _best(
    name: str, call: structs.Tensors, scale: float, k: int, seen: Tensor, **rest: Any
) -> tuple[Tensor, Tensor]:
    ids = torch.empty(*call.output.shape[:3], k, dtype=torch.int64)
    counts = seen.int().contiguous()
    given = structs.TopK(
        shape=call.shape,
        **call.views(),
        scale=scale,
        seen=counts.data_ptr(),
        ids=ids.data_ptr(),
        k=k,
        threads=torch.get_num_threads(),
        **rest,
    )
    getattr(_library(), name)(ctypes.byref(given))
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
    reason = available(products) or _refused(query, key, value, bias)
    if reason:
        return reason
    call = structs.Tensors(query, key, value)
    shape = call.shape
    if causal and shape.queries != shape.keys:
        return "causal with another number of queries than keys"
    half, heads = products == "bfloat16", shape.batch * shape.key_heads
    tokens = -(-shape.keys // BLOCK) * BLOCK
    key_bytes, value_bytes = tokens * shape.d * (2 if half else 4), tokens * shape.dv * 2 * half
    # Packed keys and values of so many heads are soon read again, and their room is used again.
    together = max(1, min(heads, ROOM // (key_bytes + value_bytes)))
    room = torch.empty(together * (key_bytes + value_bytes), dtype=torch.uint8)
    starts = columns = None
    if key_bias is not None:
        key_bias = key_bias.reshape(-1, shape.keys).expand(shape.batch, -1).float().contiguous()
    if blocks is not None:
        starts, columns = blocks.starts.contiguous(), blocks.keys.contiguous()
        if starts.shape[1] != -(-shape.queries // BLOCK) + 1:
            raise ValueError(
                f"blocks has {starts.shape[1] - 1} lists; {shape.queries} queries have "
                f"{-(-shape.queries // BLOCK)} blocks of {BLOCK}"
            )
    added, _held = structs.Bias.of(bias)
    given = structs.Dense(
        shape=shape,
        **call.views(),
        scale=scale,
        bias=added,
        list_heads=1 if starts is None else starts.shape[0],
        causal=causal,
        threads=torch.get_num_threads(),
        together=together,
        keys=room.data_ptr(),
        values=room.data_ptr() + together * key_bytes,
        **{
            name: None if x is None else x.data_ptr()
            for name, x in (("key_bias", key_bias), ("starts", starts), ("columns", columns))
        },
    )
    getattr(_library(), f"dense_{products}")(ctypes.byref(given))
    return call.result()


def _refused(*tensors: Tensor | None) -> str | None:
    given = [x for x in tensors if x is not None]
    if any(x.device.type != "cpu" for x in given):
        return "not on the CPU"
    if any(x.dtype != torch.float32 for x in given):
        return "not float32"
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return "a gradient is wanted"
    if not all(x.numel() for x in given):
        return "nothing to read"
    return None


def _library() -> Any:
    library = build.load()
    assert not isinstance(library, str)
    return library
