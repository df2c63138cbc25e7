"""IceFormer while a model decodes: new tokens are inserted into the indices (arXiv 2405.02842,
§4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from methods.base import AttentionCall, Unsupported
from methods.iceformer.inputs import TopKInputs, fold_groups, unfold_groups
from methods.iceformer.knn import Index, topk_attention
from methods.parts.kv_cache import Entries


class IndexedMethod(Protocol):
    """The part of `methods.iceformer.iceformer.IceFormer` that the cache uses."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor: ...

    def is_sparse(self, layer: int) -> bool: ...

    def k_for(self, n: int) -> int: ...

    def new_index(self, d: int, layer: int) -> Index: ...


class IndexedCache:
    """The keys and values of every token, and indices of the keys: one for each layer, and with
    padding one for each row. They are never rebuilt.

    New tokens get the output that `IceFormer.attend` gives them in one causal call over all tokens;
    with k_rule="alpha", k depends on the number of tokens so far. The torch search reads all keys.
    """

    def __init__(self, method: IndexedMethod) -> None:
        self.method = method
        self.layers: dict[int, Entries] = {}
        self.indices: dict[int, list[Index]] = {}
        self.read_bytes = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        """See `KVCache.take`. Raises Unsupported where scores have a bias."""
        if call.bias is not None or call.sequence.log_multiplicity is not None:
            raise Unsupported("iceformer's indices of a decoder take no bias on scores")
        layer, method = call.layer, self.method
        self.layers[layer] = Entries(key, value)
        self.indices[layer] = []
        for row, kept in _rows(call, key.shape[2], key.device) if method.is_sparse(layer) else ():
            index = method.new_index(key.shape[3], layer)
            index.add(_only(key[row], kept))
            self.indices[layer].append(index)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries, indices = self.layers[call.layer], self.indices[call.layer]
        entries.append(key, value)
        self.read_bytes += entries.bytes()
        if not indices:
            return entries.attend(query, call)
        groups, outputs = query.shape[1] // key.shape[1], []
        for (row, kept), index in zip(_rows(call, entries.seen, key.device), indices, strict=True):
            index.add(key[row])
            self.read_bytes += sum(x.nbytes for x in index.held())
            inputs = TopKInputs(
                query=fold_groups(query[row], key),
                key=_only(entries.key[row], kept),
                value=_only(entries.value[row], kept),
                seen=kept.cumsum(0)[-query.shape[2] :].repeat_interleave(groups),
                k=self.method.k_for(int(kept.sum())),
                scale=call.scale,
            )
            outputs.append(unfold_groups(topk_attention(inputs, index), query[row].shape))
        return torch.cat(outputs).to(query.dtype)

    def held(self) -> Sequence[Tensor]:
        entries = [part for layer in self.layers.values() for part in layer.held()]
        indices = [index for rows in self.indices.values() for index in rows]
        return entries + [part for index in indices for part in index.held()]


def _rows(call: AttentionCall, n: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and which of their n tokens are valid, [n] bool; one slice for a batch without
    padding."""
    valid = call.sequence.valid
    if valid is None or bool(valid.all()):
        yield slice(None), torch.ones(n, dtype=torch.bool, device=device)
    else:
        yield from ((slice(b, b + 1), kept) for b, kept in enumerate(valid))


def _only(x: Tensor, kept: Tensor) -> Tensor:
    """The tokens of x [B, H, n, d] that are kept [n]; a view of x where its padding is on the
    left."""
    first = int(kept.long().argmax())
    return x[:, :, first:] if bool(kept[first:].all()) else x[:, :, kept]
