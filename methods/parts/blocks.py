"""Tokens in blocks: rows cut into blocks without their padding, and means of neighbouring tokens,
each weighted by the number of tokens that it represents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.sequence import SequenceInfo


@dataclass(frozen=True)
class Blocks:
    """Tokens [B, …, n, d] ↔ blocks [B, …, blocks, size, d] of each row's valid tokens in order.

    order  [B, n] int64: the index in the input of each row's i-th valid token, then of its padding;
           None: no padding
    count  [B or 1, blocks, size]: how many tokens each slot represents; 0 in empty ones
    """

    n: int
    size: int
    order: Tensor | None
    count: Tensor

    @classmethod
    def of(cls, sequence: SequenceInfo, like: Tensor, size: int) -> Blocks:
        """For tokens `like` [B, …, n, d] in blocks of `size`."""
        n, valid, order = like.shape[-2], sequence.valid, None
        count = like.new_ones(1, n)
        if sequence.log_multiplicity is not None:
            count = sequence.log_multiplicity.to(like.dtype).exp()
        if valid is not None:
            order = (~valid).long().argsort(dim=1, stable=True)
            count = (count * valid).gather(1, order)
        blocks = -(-n // size)
        count = pad(count, (0, blocks * size - n))
        return cls(n, size, order, count.view(len(count), blocks, size))

    def split(self, x: Tensor) -> Tensor:
        """[B, …, n, d] → [B, …, blocks, size, d]; zeros in empty slots."""
        if self.order is not None:
            x = x.gather(-2, self._index(self.order, x))
        *outer, _, width = x.shape
        blocks = self.count.shape[1]
        x = pad(x, (0, 0, 0, blocks * self.size - self.n))
        x = x.view(*outer, blocks, self.size, width)
        shape = (len(self.count), *(1,) * (len(outer) - 1), blocks, self.size, 1)
        return x.masked_fill((self.count == 0).view(shape), 0)

    def joined(self, x: Tensor) -> Tensor:
        """[B, …, blocks, size, d] → [B, …, n, d]; padding gets its slot's contents."""
        x = x.flatten(-3, -2)[..., : self.n, :]
        return x if self.order is None else x.gather(-2, self._index(self.order.argsort(1), x))

    def _index(self, order: Tensor, x: Tensor) -> Tensor:
        shape = (len(order), *(1,) * (x.dim() - 3), self.n, 1)
        return order.view(shape).expand(*x.shape)


def counts_of(sequence: SequenceInfo, like: Tensor) -> Tensor:
    """[B or 1, 1, n, 1]: how many tokens each token of `like` [B, H, n, d] represents; 0 for
    padding."""
    counts = like.new_ones(1, like.shape[2])
    if sequence.log_multiplicity is not None:
        counts = sequence.log_multiplicity.exp().to(like.dtype)
    if sequence.valid is not None:
        counts = counts * sequence.valid
    return counts[:, None, :, None]


def log_of(counts: Tensor) -> Tensor:
    """The logs of counts, to add to scores; for 0 a number low enough that the weight is 0."""
    return counts.log().clamp(min=torch.finfo(counts.dtype).min / 2)


def block_means(counts: Tensor, size: int, *tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Blocks of `size` tokens, the last of which may have fewer: their counts [B or 1, 1, N, 1] and
    the means [B, H, N, d] of tensors [B, H, n, d]; 0 where a block has no token."""

    def sums(x: Tensor) -> Tensor:
        padded = pad(x, (0, 0, 0, -x.shape[2] % size))
        return padded.view(*x.shape[:2], -1, size, x.shape[3]).sum(3)

    totals = sums(counts)
    return totals, [sums(x * counts) / _positive(totals) for x in tensors]


def segment_means(sequence: SequenceInfo, segments: int, *tensors: Tensor) -> list[Tensor]:
    """Means [B, H, segments, d] of tensors [B, H, n, d] over `segments` stretches of each row's
    valid tokens, whose lengths differ by one at most; 0 where a stretch has no token."""
    if sequence.valid is not None:
        weights = segment_weights(sequence, tensors[0], segments)[:, None]
        return [weights @ x for x in tensors]
    n, counts = tensors[0].shape[2], counts_of(sequence, tensors[0])
    index = torch.arange(n, device=counts.device) * segments // n

    def sums(x: Tensor) -> Tensor:
        shape = (*x.shape[:2], segments, x.shape[3])
        return x.new_zeros(shape).index_add(2, index, x)

    totals = sums(counts)
    return [sums(x * counts) / totals for x in tensors]


def segment_weights(sequence: SequenceInfo, like: Tensor, segments: int) -> Tensor:
    """[B or 1, segments, n]: the matrix that takes tokens `like` [B, H, n, d] to the means of
    `segment_means`; rows of zeros for stretches without a token."""
    counts = counts_of(sequence, like)[:, 0, :, 0]
    valid = counts.new_ones(1, len(counts[0])).bool() if sequence.valid is None else sequence.valid
    number, tokens = valid.cumsum(1) - 1, valid.sum(1, keepdim=True).clamp(min=1)
    stretch = torch.arange(segments, device=like.device)[:, None]
    weights = ((number * segments // tokens)[:, None] == stretch) * counts[:, None]
    return weights / _positive(weights.sum(-1, keepdim=True))


def _positive(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny)
