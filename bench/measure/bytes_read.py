"""Bytes that a decoding step reads from a KV cache, counted on the storage that the cache holds.

An operation of torch reads a held tensor if its output is in other storage: views and writes in
place read nothing. A gather reads the numbers that it selects, any other operation all of them. A
number counts once for each layer and step; int64 indices of tokens don't count. Reads of native
kernels can't be observed, so torch operations read the cache while bytes are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.models.base import Decoding
from methods import kernels
from methods.kernels import build

GATHERS = {getattr(torch.ops.aten, name)
           for name in ("embedding", "gather", "index", "index_select", "take")}  # fmt: skip
"""Operations that return numbers selected from their first argument."""


class Reads(TorchDispatchMode):
    """Inside, marks the numbers that operations read from the storage of `held`."""

    supports_higher_order_operators = True

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Keeps the tensors too: storage that a step frees could be reused for others.
        self.held = {_address(x): x for x in held if x.dtype != torch.long and x.numel()}
        self.marks: dict[tuple[int, int], Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if hasattr(func, "decompose"):
            with self:
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        output, kind = func(*args, **kwargs), getattr(func, "overloadpacket", func)
        if not kind.__name__.startswith("new_") and not kind.__name__.endswith("_like"):
            own = {_address(x) for x in tree_leaves(output) if isinstance(x, Tensor)}
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, Tensor) and x.numel() and _address(x) in self.held.keys() - own:
                    self._mark(x, kind, args, kwargs)
        return output

    def bytes(self) -> int:
        """Bytes of the numbers that were read."""
        return sum(int(marks.sum()) * size for (_, size), marks in self.marks.items())

    def _mark(self, x: Tensor, kind: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        size, strides = x.element_size(), x.stride()
        if (_address(x), size) not in self.marks:
            count = x.untyped_storage().nbytes() // size
            self.marks[_address(x), size] = x.new_zeros(count, dtype=torch.bool)
        marks = self.marks[_address(x), size][x.storage_offset() :]
        if kind in GATHERS and x is args[0]:
            extent = 1 + sum((n - 1) * by for n, by in zip(x.shape, strides, strict=True))
            places = torch.arange(extent, device=x.device).as_strided(x.shape, strides)
            marks[kind(places, *args[1:], **kwargs)] = True
        else:
            shape = [n if by else 1 for n, by in zip(x.shape, strides, strict=True)]
            marks.as_strided(shape, strides, marks.storage_offset()).fill_(True)


def counted_and_reported(decoding: Decoding, ids: Tensor) -> tuple[int, int]:
    """Reads the next tokens [B, t] → bytes read from the cache, as counted and as the cache
    reports. Only the marks of one layer, a byte for each number, are in memory at a time."""
    cache, counted = decoding.cache, 0
    assert cache is not None
    decode, before = type(cache).decode, cache.read_bytes

    def counting(*args: Any) -> Tensor:
        nonlocal counted
        with Reads(cache.held()) as reads:
            output = decode(*args)
        counted += reads.bytes()
        return output

    with (
        patch.object(type(cache), "decode", counting),
        patch.object(build, "load", lambda: "its reads can't be counted"),
        patch.object(kernels, "note", lambda *_: None),
    ):
        decoding.step(ids)
    return counted, cache.read_bytes - before


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
