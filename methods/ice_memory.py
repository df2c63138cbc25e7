"""IceFormer while a model decodes: a new token is inserted into its indices (§4.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from methods import indices, knn
from methods.base import Call, Unsupported
from methods.iceformer import IceFormer
from methods.vanilla import exact_attention


class IceMemory:
    """The indices of a decoder's past keys, one for each layer, and for each row where there is
    padding. Nothing is rebuilt when tokens come.

    `attend` gives the last t tokens what `IceFormer.attend` gives them in one causal call over all
    of them. With k_rule="alpha" k follows the tokens so far. Where scores have a bias or keys a
    multiplicity it reads anew, one token at a time.
    """

    def __init__(self, method: IceFormer) -> None:
        self.method = method
        self.indices: dict[int, list[knn.Index]] = {}
        self.known: dict[int, int] = {}  # tokens of each layer that are in its indices

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        """query [B, H, t, d], the last t tokens; key and value [B, H or a divisor, n, d], all."""
        sequence, layer, method = call.sequence, call.layer, self.method
        (batch, heads, t, d), n = query.shape, key.shape[2]
        biased = call.bias is not None or sequence.log_multiplicity is not None
        if biased and t > 1:
            raise Unsupported("iceformer decodes one token at a time where scores have a bias")
        if biased:
            return method.attend(query, key, value, call)
        if t == 1 and not method.takes(layer):
            return exact_attention(query, key, value, call)
        valid, rows = sequence.valid, [slice(b, b + 1) for b in range(batch)]
        if valid is None or bool(valid.all()):
            valid, rows = torch.ones(batch, n, dtype=torch.bool, device=key.device), [slice(None)]
        if layer not in self.indices:
            taken = method.takes(layer)
            self.indices[layer] = [
                method.index(d, layer) if taken else indices.Exact() for _ in rows
            ]
        known = self.known.get(layer, 0)
        outputs = []
        for row, index in zip(rows, self.indices[layer], strict=True):
            kept = valid[row][0]
            keys, count = _only(key[row], kept), int(kept.sum())
            index.add(keys[:, :, int(kept[:known].sum()) :])
            reads = knn.Reads(
                query=knn.folded(query[row], keys),
                key=keys,
                value=_only(value[row], kept),
                seen=kept.cumsum(0)[n - t :].repeat_interleave(heads // key.shape[1]),
                k=method.keys_read(count) if method.takes(layer) else count,
                scale=call.scale,
            )
            outputs.append(knn.unfolded(knn.read(reads, index)[0], query[row].shape))
        self.known[layer] = n
        return torch.cat(outputs).to(query.dtype)


def _only(x: Tensor, kept: Tensor) -> Tensor:
    """The tokens kept [n] of x [B, H, n, d]; a view of x where its padding stands in front."""
    first = int(kept.long().argmax())
    return x[:, :, first:] if bool(kept[first:].all()) else x[:, :, kept]
