"""Attention over parts of the keys, merged as if one softmax had run over all of them, and over the
keys of groups: windows, strides, hierarchies.

Softmax attention over two disjoint sets of keys is the mean of the attention over each, weighted by
the sums of exponentials (Milakov and Gimelshein, arXiv 1805.02867).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods.parts.attention import positions_of, widened
from methods.parts.sequence import AttentionCall

IN_CACHE = 1 << 19
"""Numbers that are worked on at a time."""


@dataclass(frozen=True)
class Partial:
    """Attention of queries over some of their keys.

    output   [..., q, d], at least float32
    log_sum  [..., q, 1]: the log of the sum of the exponentials of the scores; near the dtype's
             lowest number where a query has no key in this part
    """

    output: Tensor
    log_sum: Tensor

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        bias: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Partial:
        """query [..., q, d], key and value [..., k, d]. `bias`, which is added to the scores, and
        `visible`, whether a query reads a key, broadcast to [..., q, k]."""
        scores = widened(query * scale @ key.transpose(-1, -2))
        if bias is not None:
            scores = scores + bias
        if visible is not None:
            scores = scores.masked_fill_(~visible, torch.finfo(scores.dtype).min)
        return cls.from_scores(scores, value)

    @classmethod
    def from_scores(cls, scores: Tensor, value: Tensor) -> Partial:
        """scores [..., q, k], at least float32, and value [..., k, d]."""
        weights = scores.softmax(-1)
        # Two maxima compute the log of a sum of exponentials faster than logsumexp.
        log_sum = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()
        return cls(weights.to(value.dtype) @ value, log_sum)

    def merged(self, other: Partial) -> Partial:
        """Attention over the keys of both parts."""
        log_sum = torch.logaddexp(self.log_sum, other.log_sum)
        shares = [(part.log_sum - log_sum).exp() for part in (self, other)]
        return Partial(shares[0] * self.output + shares[1] * other.output, log_sum)

    def repeated(self, times: int, length: int) -> Partial:
        """Each query repeated `times` times in a row; the first `length` of the results."""
        output, log_sum = (
            x.repeat_interleave(times, -2)[..., :length, :] for x in (self.output, self.log_sum)
        )
        return Partial(output, log_sum)


def attend_in_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: AttentionCall,
    query_tokens: Tensor,
    key_tokens: Tensor,
    visible: Tensor | None = None,
) -> Partial:
    """Groups of queries that each read their group's keys, with the call's position bias and
    multiplicities: query [B, H, n, d], key and value [B, H, m, d] → output [B, H, n, d].

    query_tokens  [G, q]: every query 0 … n-1 once; numbers from n on are ignored
    key_tokens    [G, k]; numbers below 0 or from m on are not read
    visible       [G, q, k]: which pairs of a group are read; None: all. In a causal sequence,
                  queries never read later tokens.
    """
    groups = Groups(query, key, value, call, query_tokens, key_tokens, visible)
    parts = [
        Partial.of(q, k, v, call.scale, bias, seen)
        for (q, k, v), bias, seen in groups.chunks(query_tokens.shape[1] * key_tokens.shape[1])
    ]
    return Partial(
        groups.in_order([part.output for part in parts]),
        groups.in_order([part.log_sum for part in parts]),
    )


def fused_in_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: AttentionCall,
    query_tokens: Tensor,
    key_tokens: Tensor,
    visible: Tensor | None = None,
) -> Tensor:
    """Like `attend_in_groups`, by torch's fused attention, which doesn't return sums for
    merging."""
    groups, outputs = Groups(query, key, value, call, query_tokens, key_tokens, visible), []
    for qkv, bias, seen in groups.chunks(2 * key_tokens.shape[1] * query.shape[3]):
        mask = query.new_zeros(1, 1) if bias is None else bias.to(query.dtype)
        mask = mask.masked_fill(~seen, torch.finfo(query.dtype).min)
        if bias is None:
            mask = mask[None]
        else:
            mask = mask.expand(*query.shape[:2], *mask.shape[2:]).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in qkv)
        output = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale)
        outputs.append(output.view(*query.shape[:2], *output.shape[1:]))
    return groups.in_order(outputs)


@dataclass(frozen=True)
class Groups:
    """The arguments of `attend_in_groups`."""

    query: Tensor
    key: Tensor
    value: Tensor
    call: AttentionCall
    query_tokens: Tensor
    key_tokens: Tensor
    visible: Tensor | None

    def chunks(
        self, numbers: int
    ) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor | None, Tensor]]:
        """Some groups at a time, so that their data, `numbers` a group, stay in the cache: query,
        key and value [B, H, groups, q or k, d], bias, and which pairs are read [groups, q or 1,
        k]."""
        batch, heads = self.query.shape[:2]
        size = max(1, IN_CACHE // (numbers * batch * heads))
        for start in range(0, len(self.query_tokens), size):
            chunk = slice(start, start + size)
            queries, keys = self.query_tokens[chunk], self.key_tokens[chunk]
            rows, columns = queries.clamp(max=self.query.shape[2] - 1), keys.clamp(min=0)
            columns = columns.clamp(max=self.key.shape[2] - 1)
            seen = (keys == columns)[:, None, :]
            if self.visible is not None:
                seen = seen & self.visible[chunk]
            if self.call.sequence.causal:
                seen = seen & (keys[:, None, :] <= queries[:, :, None])
            parts = _at(self.query, rows), _at(self.key, columns), _at(self.value, columns)
            yield parts, self._bias(rows, columns), seen

    def in_order(self, outputs: Sequence[Tensor]) -> Tensor:
        """Outputs [B, H, groups, q, d] of all chunks → [B, H, n, d]."""
        order = self.query_tokens.flatten().argsort()[: self.query.shape[2]]
        return torch.cat(list(outputs), 2).flatten(2, 3).index_select(2, order)

    def _bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[B or 1, H or 1, groups, q or 1, k]"""
        bias, sequence = None, self.call.sequence
        if self.call.bias is not None:
            positions, _ = positions_of(sequence, self.query.shape[2], queries.device)
            places = (positions[:, x].flatten(0, 1) for x in (queries, keys))
            bias = self.call.bias(*places).unflatten(0, (-1, len(keys))).transpose(1, 2)
        if sequence.log_multiplicity is not None:
            counts = sequence.log_multiplicity[:, keys][:, None, :, None, :]
            bias = counts if bias is None else bias + counts
        return bias


def _at(x: Tensor, tokens: Tensor) -> Tensor:
    """[B, H, n, d] → [B, H, *tokens.shape, d]; several times as fast as indexing."""
    return x.index_select(2, tokens.flatten()).view(*x.shape[:2], *tokens.shape, x.shape[3])
