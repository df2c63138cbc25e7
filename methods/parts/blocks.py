"""Rows cut into blocks without their padding, for blocked methods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
        count = torch.nn.functional.pad(count, (0, blocks * size - n))
        return cls(n, size, order, count.view(len(count), blocks, size))

    def split(self, x: Tensor) -> Tensor:
        """[B, …, n, d] → [B, …, blocks, size, d]; zeros in empty slots."""
        if self.order is not None:
            x = x.gather(-2, self._index(self.order, x))
        *outer, _, width = x.shape
        blocks = self.count.shape[1]
        x = torch.nn.functional.pad(x, (0, 0, 0, blocks * self.size - self.n))
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
