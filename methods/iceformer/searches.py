"""The indices of IceFormer as plain k-NN searches, for `bench recall` (arXiv 2405.02842, Figure 3).

Each takes keys [n, d] and k, and returns a function from queries [q, d] to the ids [q, k] of the
keys with the largest inner products, -1 where there are fewer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from methods.iceformer import knn, scans
from methods.iceformer.blocks import Blocks
from methods.iceformer.dci import Dci
from methods.iceformer.inputs import TopKInputs

Query = Callable[[Tensor], Tensor]


def exact(keys: Tensor, k: int) -> Query:
    return _search(scans.Exact(), keys, k)


def quantized(keys: Tensor, k: int) -> Query:
    return _search(scans.Quantized(), keys, k)


def blocks(keys: Tensor, k: int) -> Query:
    return _search(Blocks(), keys, k)


def dci(keys: Tensor, k: int, m: int, L: int, k0: float) -> Query:
    return _search(Dci(keys.shape[1], m, L, k0, None, 0, "independent"), keys, k)


def _search(index: knn.Index, keys: Tensor, k: int) -> Query:
    """The native kernels build and query in one call, so all of their time counts as the
    query's."""

    def query(queries: Tensor) -> Tensor:
        seen = torch.full((len(queries),), len(keys))
        key, many = keys[None, None].contiguous(), queries[None, None].contiguous()
        inputs = TopKInputs(many, key, key, seen, k, scale=1.0)
        result = index.native(inputs)
        if not isinstance(result, str):
            return result[1][0, 0]
        index.add(key)
        ids = torch.empty(1, 1, len(queries), k, dtype=torch.int64)
        knn.topk_attention(inputs, index, ids)
        return ids[0, 0]

    return query
