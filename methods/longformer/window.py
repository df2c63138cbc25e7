"""Sliding-window attention with global keys: blocks of queries read three blocks of keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from methods.attention import add_key_bias, positions_of
from methods.blocks import Blocks
from methods.sequence import AttentionCall

AT_ONCE = 16
"""Blocks of queries whose keys are copied side by side at once."""


@dataclass(frozen=True)
class GlobalTokens:
    """The global tokens of each row, as many as the row with most has.

    index   [B, G] int64: their places
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


def window_attention(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, radius: int, chosen: Tensor
) -> Tensor:
    """Each token reads those at most `radius` valid tokens away, and the global ones, `chosen`
    [B, n]: query, key, value [B, H, n, d] → [B, H, n, d]."""
    n = query.shape[2]
    lowest = torch.finfo(query.dtype).min
    blocks = Blocks.of(call.sequence, query, max(1, min(radius, n)))
    size, count = blocks.size, blocks.count.expand(len(query), -1, -1)
    reach = 2 if call.sequence.causal else 3  # blocks of keys, from the one before on

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
    tokens = GlobalTokens.of(chosen)
    is_global = blocks.split(chosen[..., None].to(query.dtype))
    near = windows((count * (1 - is_global[..., 0]))[..., None])[..., 0]
    near = near.clamp(min=torch.finfo(near.dtype).tiny).log().masked_fill(near == 0, lowest)
    near = torch.where(band, near[:, :, None], lowest)  # [B, N, size, reach·size]
    key_bias = call.sequence.key_bias(query.dtype)
    far = near.new_zeros(len(query), n) if key_bias is None else key_bias[:, 0, 0]
    far = far.expand(len(query), -1).gather(1, tokens.index).masked_fill(~tokens.exists, lowest)
    bias = torch.cat((near, far[:, None, None].expand(*near.shape[:3], -1)), -1)
    places, _ = positions_of(call.sequence, n, query.device)
    places = places.expand(len(query), -1)
    block_places = blocks.split(places[..., None].double()).long()
    key_places = windows(block_places)[..., 0]
    global_places = places.gather(1, tokens.index)[:, None].expand(-1, near.shape[1], -1)
    key_places = torch.cat((key_places, global_places), -1)
    queries, keys, values = map(blocks.split, (query, key, value))
    keys, values = windows(keys), windows(values)
    globals_ = [tokens.take(x)[:, :, None] for x in (key, value)]
    outputs = []
    for start in range(0, near.shape[1], AT_ONCE):
        some = slice(start, min(start + AT_ONCE, near.shape[1]))
        q, k, v = (x[:, :, some].transpose(1, 2).flatten(0, 1) for x in (queries, keys, values))
        gk, gv = (
            x.expand(-1, -1, some.stop - some.start, -1, -1).transpose(1, 2).flatten(0, 1)
            for x in globals_
        )
        mask = bias[:, some].flatten(0, 1)[:, None]
        if call.bias is not None:
            pair = (block_places[:, some, :, 0], key_places[:, some])
            scores = call.bias(*(x.flatten(0, 1) for x in pair)).to(mask.dtype)
            mask = add_key_bias(scores, mask)
        read = scaled_dot_product_attention(
            q, torch.cat((k, gk), 2), torch.cat((v, gv), 2), mask, call.dropout, scale=call.scale
        )
        outputs.append(read.view(len(query), -1, *read.shape[1:]).transpose(1, 2))
    return blocks.joined(torch.cat(outputs, 2))


def global_attention(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, tokens: GlobalTokens
) -> Tensor:
    """What the global tokens read, of all tokens: [B, H, n, d] → [B, H, G, d]."""
    mask = call.sequence.key_bias(query.dtype)
    if call.bias is not None:
        places, _ = positions_of(call.sequence, query.shape[2], query.device)
        places = places.expand(len(query), -1)
        bias = call.bias(places.gather(1, tokens.index), places).to(query.dtype)
        mask = bias if mask is None else add_key_bias(bias, mask)
    return scaled_dot_product_attention(
        tokens.take(query), key, value, mask, call.dropout, scale=call.scale
    )
