"""IceFormer while a model decodes: new tokens are inserted into the indices (arXiv 2405.02842,
§4.3)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from methods.attention import exact_attention
from methods.base import AttentionCall, Unsupported
from methods.iceformer.inputs import TopKInputs, fold_groups, unfold_groups
from methods.iceformer.knn import Index, topk_attention
from methods.iceformer.scans import Exact


class IndexedMethod(Protocol):
    """What the state needs of `methods.iceformer.iceformer.IceFormer`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor: ...

    def is_sparse(self, layer: int) -> bool: ...

    def k_for(self, n: int) -> int: ...

    def new_index(self, d: int, layer: int) -> Index: ...


class IndexedState:
    """A decoder's past keys in indices: one for each layer, and for each row where there is
    padding. They are never rebuilt.

    `attend` gives the last t tokens what `IceFormer.attend` gives them in one causal call over all
    of them. With k_rule="alpha", k follows the number of tokens so far. Where scores have a bias or
    keys a multiplicity, an index is built in every call, for one token at a time.
    """

    def __init__(self, method: IndexedMethod) -> None:
        self.method = method
        self.indices: dict[int, list[Index]] = {}
        self.tokens: dict[int, int] = {}  # of each layer, in its indices

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """query [B, H, t, d], the last t tokens; key and value [B, H or a divisor, n, d], all."""
        sequence, layer, method = call.sequence, call.layer, self.method
        (batch, heads, t, d), n = query.shape, key.shape[2]
        biased = call.bias is not None or sequence.log_multiplicity is not None
        if biased and t > 1:
            raise Unsupported("iceformer decodes one token at a time where scores have a bias")
        if biased:
            return method.attend(query, key, value, call)
        sparse = method.is_sparse(layer)
        if t == 1 and not sparse:
            return exact_attention(query, key, value, call)
        valid, rows = sequence.valid, [slice(b, b + 1) for b in range(batch)]
        if valid is None or bool(valid.all()):
            valid, rows = torch.ones(batch, n, dtype=torch.bool, device=key.device), [slice(None)]
        if layer not in self.indices:
            self.indices[layer] = [method.new_index(d, layer) if sparse else Exact() for _ in rows]
        indexed = self.tokens.get(layer, 0)
        outputs = []
        for row, index in zip(rows, self.indices[layer], strict=True):
            kept = valid[row][0]
            keys, count = _only(key[row], kept), int(kept.sum())
            index.add(keys[:, :, int(kept[:indexed].sum()) :])
            inputs = TopKInputs(
                query=fold_groups(query[row], keys),
                key=keys,
                value=_only(value[row], kept),
                seen=kept.cumsum(0)[n - t :].repeat_interleave(heads // key.shape[1]),
                k=method.k_for(count) if sparse else count,
                scale=call.scale,
            )
            output = topk_attention(inputs, index)
            outputs.append(unfold_groups(output, query[row].shape))
        self.tokens[layer] = n
        return torch.cat(outputs).to(query.dtype)


def _only(x: Tensor, kept: Tensor) -> Tensor:
    """The tokens kept [n] of x [B, H, n, d]; a view of x where its padding is on the left."""
    first = int(kept.long().argmax())
    return x[:, :, first:] if bool(kept[first:].all()) else x[:, :, kept]
