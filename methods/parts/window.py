"""Sliding-window attention with further keys that every token reads, such as those of global
tokens. Blocks of queries read three blocks of keys. Distances are counted in valid tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from methods.parts.attention import add_key_bias, positions_of
from methods.parts.blocks import Blocks
from methods.parts.sequence import AttentionCall, SequenceInfo

AT_ONCE = 16
"""Blocks of queries whose keys are copied side by side at once."""


@dataclass(frozen=True)
class GlobalTokens:
    """The global tokens of each row, padded to the row with the most.

    index   [B, G] int64: their indices
    exists  [B, G] bool: False where a row has fewer
    """

    index: Tensor
    exists: Tensor

    @classmethod
    def of(cls, chosen: Tensor) -> GlobalTokens:
        """chosen [B, n] bool"""
        most = int(chosen.sum(1).max())
        index = (~chosen).long().argsort(dim=1, stable=True)[:, :most]
        return cls(index, chosen.gather(1, index))

    def take(self, x: Tensor) -> Tensor:
        """[B, H, n, d] → [B, H, G, d]"""
        return x.gather(2, self._index(x))

    def put(self, x: Tensor, values: Tensor) -> Tensor:
        """x [B, H, n, d] with values [B, H, G, d] at the global tokens."""
        values = torch.where(self.exists[:, None, :, None], values, self.take(x))
        return x.scatter(2, self._index(x), values)

    def _index(self, x: Tensor) -> Tensor:
        return self.index[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3])


@dataclass(frozen=True)
class FurtherKeys:
    """Keys that every token reads in addition to its window.

    key, value  [B, H, m, d]
    bias        to add to the scores of some queries, by their ranks [q] among their row's valid
                tokens and their positions [B, q] → [B or 1, H or 1, q or 1, m]
    """

    key: Tensor
    value: Tensor
    bias: Callable[[Tensor, Tensor], Tensor]

    @classmethod
    def of(cls, tokens: GlobalTokens, key: Tensor, value: Tensor, call: AttentionCall) -> Self:
        """The keys of the global tokens."""
        key_bias = call.sequence.key_bias(key.dtype)
        far = key.new_zeros(len(key), key.shape[2]) if key_bias is None else key_bias[:, 0, 0]
        far = far.expand(len(key), -1).gather(1, tokens.index)
        far = far.masked_fill(~tokens.exists, torch.finfo(key.dtype).min)[:, None, None]
        places = _places(call.sequence, key).gather(1, tokens.index)

        def bias(_: Tensor, query_places: Tensor) -> Tensor:
            if call.bias is None:
                return far
            return add_key_bias(call.bias(query_places, places).to(far.dtype), far)

        return cls(tokens.take(key), tokens.take(value), bias)

    def repeated(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value for each of the blocks of `keys` [B·N, H, k, d]: [B·N, H, m, d]"""
        times = len(keys) // len(self.key)
        return self.key.repeat_interleave(times, 0), self.value.repeat_interleave(times, 0)

    def beside(self, mask: Tensor, places: Tensor, first: int) -> Tensor:
        """The mask [B·N, 1 or H, size, k] of blocks of queries, the first with rank `first`, at
        positions `places` [B, N, size], extended by the bias of these keys: [B·N, 1 or H, size, k +
        m]"""
        batch, blocks, size = places.shape
        ranks = torch.arange(first, first + blocks * size, device=places.device)
        bias = self.bias(ranks, places.flatten(1)).to(mask.dtype)
        bias = bias.expand(batch, -1, blocks * size, -1).unflatten(2, (blocks, size))
        bias = bias.transpose(1, 2).flatten(0, 1)
        heads = max(mask.shape[1], bias.shape[1])
        return torch.cat([x.expand(-1, heads, -1, -1) for x in (mask, bias)], -1)


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: AttentionCall,
    radius: int,
    further: FurtherKeys | None = None,
    left_out: Tensor | None = None,
) -> Tensor:
    """Each token reads the tokens at most `radius` valid tokens away, except `left_out` [B, n], and
    the further keys, under one softmax: query, key, value [B, H, n, d] → [B, H, n, d]."""
    n = query.shape[2]
    lowest = torch.finfo(query.dtype).min
    blocks = Blocks.of(call.sequence, query, max(1, min(radius, n)))
    size, count = blocks.size, blocks.count.expand(len(query), -1, -1)
    reach = 2 if call.sequence.causal else 3  # blocks of keys, from the previous one on

    def windows(x: Tensor) -> Tensor:
        """[B, …, N, size, d] → [B, …, N, reach·size, d]"""
        padded = pad(x, (0, 0, 0, 0, 1, reach - 2))
        parts = [padded.narrow(-3, i, x.shape[-3]) for i in range(reach)]
        return torch.cat(parts, -2)

    at = torch.arange(size, device=query.device)[:, None] + size
    to = torch.arange(reach * size, device=query.device)
    band = (at - to).abs() <= radius
    if call.sequence.causal:
        band &= to <= at
    if left_out is not None:
        count = count * (1 - blocks.split(left_out[..., None].to(query.dtype))[..., 0])
    near = windows(count[..., None])[..., 0]
    near = near.clamp(min=torch.finfo(near.dtype).tiny).log().masked_fill(near == 0, lowest)
    near = torch.where(band, near[:, :, None], lowest)  # [B, N, size, reach·size]
    places = blocks.split(_places(call.sequence, query)[..., None].double()).long()
    key_places = windows(places)[..., 0]
    queries, keys, values = map(blocks.split, (query, key, value))
    keys, values = windows(keys), windows(values)
    outputs = []
    for start in range(0, near.shape[1], AT_ONCE):
        some = slice(start, min(start + AT_ONCE, near.shape[1]))
        q, k, v = (x[:, :, some].transpose(1, 2).flatten(0, 1) for x in (queries, keys, values))
        mask = near[:, some].flatten(0, 1)[:, None]
        if call.bias is not None:
            pair = (places[:, some, :, 0], key_places[:, some])
            scores = call.bias(*(x.flatten(0, 1) for x in pair)).to(mask.dtype)
            mask = add_key_bias(scores, mask)
        if further is not None:
            k, v = (torch.cat((x, y), 2) for x, y in zip((k, v), further.repeated(k), strict=True))
            mask = further.beside(mask, places[:, some, :, 0], start * size)
        read = scaled_dot_product_attention(q, k, v, mask, call.dropout, scale=call.scale)
        outputs.append(read.view(len(query), -1, *read.shape[1:]).transpose(1, 2))
    return blocks.joined(torch.cat(outputs, 2))


def global_attention(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, tokens: GlobalTokens
) -> Tensor:
    """Attention of the global tokens to all tokens: query [B, H, G, d], key and value [B, H, n, d]
    → [B, H, G, d]."""
    mask = call.sequence.key_bias(query.dtype)
    if call.bias is not None:
        places = _places(call.sequence, key)
        bias = call.bias(places.gather(1, tokens.index), places).to(query.dtype)
        mask = bias if mask is None else add_key_bias(bias, mask)
    return scaled_dot_product_attention(query, key, value, mask, call.dropout, scale=call.scale)


def window_and_global_attention(
    local: tuple[Tensor, Tensor, Tensor],
    second: Callable[[GlobalTokens], Sequence[Tensor]],
    call: AttentionCall,
    radius: int,
    chosen: Tensor,
) -> Tensor:
    """Each token reads its window and the global tokens, `chosen` [B, n], with the queries, keys
    and values `local` [B, H, n, d]. A global token reads all tokens with those of `second`: queries
    of the global tokens [B, H, G, d], keys and values of all tokens → [B, H, n, d]."""
    query, key, value = local
    if not bool(chosen.any()):
        return window_attention(query, key, value, call, radius)
    tokens = GlobalTokens.of(chosen)
    further = FurtherKeys.of(tokens, key, value, call)
    read = window_attention(query, key, value, call, radius, further, left_out=chosen)
    query, key, value = second(tokens)
    return tokens.put(read, global_attention(query, key, value, call, tokens))


def first_tokens(sequence: SequenceInfo, tokens: Tensor) -> Tensor:
    """[B, n] bool: each row's first valid token; tokens [B, H, n, d]."""
    valid = sequence.valid
    if valid is None:
        valid = tokens.new_ones((len(tokens), tokens.shape[2]), dtype=torch.bool)
    return valid & (valid.cumsum(1) == 1)


def _places(sequence: SequenceInfo, tokens: Tensor) -> Tensor:
    """[B, n]: the tokens' positions; tokens [B, H, n, d]."""
    places, _ = positions_of(sequence, tokens.shape[2], tokens.device)
    return places.expand(len(tokens), -1)
