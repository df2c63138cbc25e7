"""The kernels' argument structures, with the same fields as in dense.h, best.h, lookups.h, codes.h
and rows.h."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64  # keys, and queries, in a block
LANES = 16  # numbers in a vector
EDGE = 64  # equal numbers at each end of a bias table


class TensorView(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("data", "batch", "head", "row")]


class Sizes(ctypes.Structure):
    _fields_ = [
        (name, c_int64) for name in ("batch", "heads", "key_heads", "queries", "keys", "d", "dv")
    ]


class BiasTable(ctypes.Structure):
    _fields_ = [("table", c_void_p), ("width", c_int64), ("origin", c_int64)]

    @classmethod
    def of(cls, diagonals: Tensor | None) -> tuple[BiasTable, Tensor | None]:
        """diagonals [H, 2n-1], the bias at distance -(n-1) … n-1 → the table, and the
        tensor that owns its memory. The constant part towards each end is left out."""
        if diagonals is None:
            return cls(None, 0, 0), None
        last = diagonals.shape[1] - 1
        changes = (diagonals[:, 1:] != diagonals[:, :-1]).any(0).nonzero()[:, 0]
        start, stop = (int(changes[0]), int(changes[-1]) + 2) if len(changes) else (0, 1)
        ends = (EDGE, EDGE)
        table = pad(diagonals.float()[None, :, start:stop], ends, mode="replicate").contiguous()
        return cls(table.data_ptr(), table.shape[2], EDGE + last // 2 - start), table


class Dense(ctypes.Structure):
    _fields_ = [
        ("sizes", Sizes),
        *((name, TensorView) for name in ("query", "key", "value", "output")),
        ("scale", c_float),
        ("skip", c_float),
        ("key_bias", c_void_p),
        ("bias", BiasTable),
        *((name, c_void_p) for name in ("starts", "columns", "visible")),
        *((name, c_int64) for name in ("list_heads", "causal", "threads", "together")),
        *((name, c_void_p) for name in ("keys", "values", "tiles")),
    ]


class Points(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("keys", "queries", "shared", "variance")]


class TopK(ctypes.Structure):
    _fields_ = [
        ("sizes", Sizes),
        *((name, TensorView) for name in ("query", "key", "value", "output")),
        ("scale", c_float),
        ("seen", c_void_p),
        ("bias", BiasTable),
        *((name, c_void_p) for name in ("places", "ids")),
        *((name, c_int64) for name in ("k", "wanted", "threads")),
        *((name, c_void_p) for name in ("eight", "means", "scales", "channel_sizes", "channels")),
        *((name, c_void_p) for name in ("key_lists", "query_lists", "retrieved")),
        *((name, c_int64) for name in ("m", "L", "lanes")),
        ("points", Points),
        *((name, c_void_p) for name in ("centres", "variances", "along", "order", "spare")),
        ("deviations", c_float),
    ]


class Lookups(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("query", "centroids", "codes", "value", "output")),
        *((name, c_int64) for name in ("codes_apart", "values_apart", "heads", "rows", "groups")),
        *((name, c_int64) for name in ("channels", "keys", "dv", "bfloat", "threads")),
        ("scale", c_float),
    ]


class Codes(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("rows", "codes", "scales", "minima", "output")),
        *((name, c_int64) for name in ("codes_apart", "scales_apart", "heads", "count")),
        *((name, c_int64) for name in ("entries", "d", "bits", "groups", "block", "bfloat")),
        ("threads", c_int64),
        ("numbers", c_float * 16),
    ]


class Rows(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("given", "data", "places", "output")),
        *((name, c_int64) for name in ("head_apart", "row_apart", "heads", "sharing", "count")),
        *((name, c_int64) for name in ("entries", "width", "bfloat", "threads")),
    ]


class Tensors:
    """Query, key, value and output as arguments of the kernels: d and e are padded to vectors of
    16, and the last dimension is contiguous. Owns the memory that the views point to."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.e = value.shape[-1]
        query, key, value = self.inputs = [_vectors(x) for x in (query, key, value)]
        self.output = torch.empty(*query.shape[:3], value.shape[-1])
        self.sizes = Sizes(
            query.shape[0],
            query.shape[1],
            key.shape[1],
            query.shape[2],
            key.shape[2],
            query.shape[3],
            value.shape[3],
        )

    def views(self) -> dict[str, TensorView]:
        return {
            name: TensorView(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))
            for name, x in zip(
                ("query", "key", "value", "output"), (*self.inputs, self.output), strict=True
            )
        }

    def result(self) -> Tensor:
        return self.output[..., : self.e]


def _vectors(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % LANES
    if missing:
        x = pad(x, (0, missing))
    return x if x.stride(-1) == 1 else x.contiguous()
