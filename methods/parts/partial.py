"""Attention over parts of the keys, merged as if one softmax had run over all of them.

Softmax attention over two disjoint sets of keys is the mean of the attention over each, weighted by
the sums of exponentials (Milakov and Gimelshein, arXiv 1805.02867).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def widened(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, in which a softmax is too coarse."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
