"""Attention over parts of the keys, merged as if one softmax had run over all of them.

Softmax attention over two disjoint sets of keys is the mean of the attention over each, weighted by
the sums of exponentials (Milakov and Gimelshein, arXiv 1805.02867).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.attention import positions_of
from methods.sequence import AttentionCall


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
        """query [..., q, d], key and value [..., k, d]; to [..., q, k] broadcast `bias`, which is
        added to the scores, and `visible`, whether a query reads a key."""
        scores = widened(query @ key.transpose(-1, -2)) * scale
        if bias is not None:
            scores = scores + bias
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return cls.from_scores(scores, value)

    @classmethod
    def from_scores(cls, scores: Tensor, value: Tensor) -> Partial:
        """scores [..., q, k], which are overwritten, and value [..., k, d]."""
        most = scores.detach().amax(-1, keepdim=True)
        weights = scores.sub_(most).exp_()
        total = weights.sum(-1, keepdim=True)
        return cls(weights.to(value.dtype) @ value / total, most + total.log())

    def merged(self, other: Partial) -> Partial:
        """Attention over the keys of both parts."""
        log_sum = torch.logaddexp(self.log_sum, other.log_sum)
        shares = [(part.log_sum - log_sum).exp() for part in (self, other)]
        return Partial(shares[0] * self.output + shares[1] * other.output, log_sum)

    def repeated(self, times: int, length: int) -> Partial:
        """Each query `times` times in a row, and the first `length` of them."""
        output, log_sum = (
            x.repeat_interleave(times, -2)[..., :length, :] for x in (self.output, self.log_sum)
        )
        return Partial(output, log_sum)


def widened(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, in which a softmax is too coarse."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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

    query_tokens  [G, q]: every query 0 … n-1 once, and any number from n on
    key_tokens    [G, k]; keys that don't exist, below 0 or from m on, are not read
    visible       [G, q, k]: which pairs of a group are read; None: all. A causal sequence's queries
                  read no later token either way.
    """
    n = query.shape[2]
    queries, keys = query_tokens.clamp(max=n - 1), key_tokens.clamp(0, key.shape[2] - 1)
    exists = (key_tokens == keys)[:, None, :]
    visible = exists if visible is None else visible & exists
    if call.sequence.causal:
        visible = visible & (key_tokens[:, None, :] <= query_tokens[:, :, None])
    bias = None
    if call.bias is not None:
        positions, _ = positions_of(call.sequence, n, query.device)
        places = (positions[:, x].flatten(0, 1) for x in (queries, keys))
        bias = call.bias(*places).unflatten(0, (-1, len(keys))).transpose(1, 2)
    if call.sequence.log_multiplicity is not None:
        counts = call.sequence.log_multiplicity[:, keys][:, None, :, None, :]
        bias = counts if bias is None else bias + counts
    part = Partial.of(
        query[:, :, queries], key[:, :, keys], value[:, :, keys], call.scale, bias, visible
    )
    order = query_tokens.flatten().argsort()[:n]
    return Partial(*(x.flatten(2, 3)[:, :, order] for x in (part.output, part.log_sum)))
