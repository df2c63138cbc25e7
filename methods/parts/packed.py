"""Rows of a batch without their padding, for methods that shorten sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.parts.sequence import SequenceInfo


@dataclass(frozen=True)
class Packed:
    """Rows with their padding at the end: hidden [B, m, D], lengths, positions [B, m]; order
    [B, m] int64: the index of each token in the input, or None where it is unchanged."""

    hidden: Tensor
    lengths: list[int]
    positions: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, hidden: Tensor, sequence: SequenceInfo) -> Packed:
        batch, n, size = hidden.shape
        positions, valid = sequence.positions, sequence.valid
        if positions is None:
            positions = torch.arange(n, device=hidden.device)[None]
        positions = positions.expand(batch, n)
        if valid is None or bool(valid.all()):
            return cls(hidden, [n] * batch, positions, None)
        lengths = valid.sum(1).tolist()
        order = (~valid).long().argsort(dim=1, stable=True)[:, : max(1, *lengths)]
        hidden = hidden.gather(1, order[..., None].expand(-1, -1, size))
        return cls(hidden, lengths, positions.gather(1, order), order)

    @property
    def sequence(self) -> SequenceInfo:
        m = self.hidden.shape[1]
        if min(self.lengths) == m:
            return SequenceInfo(self.positions)
        lengths = torch.tensor(self.lengths, device=self.hidden.device)
        return SequenceInfo(
            self.positions, torch.arange(m, device=lengths.device) < lengths[:, None]
        )

    def with_hidden(self, hidden: Tensor) -> Packed:
        return Packed(hidden, self.lengths, self.positions, self.order)

    def unpacked(self, hidden: Tensor, n: int) -> Tensor:
        """[B, m, D] → [B, n, D] at the tokens' indices in the input; zeros at padding."""
        if self.order is None:
            return hidden
        valid = self.sequence.valid
        if valid is not None:
            hidden = hidden.masked_fill(~valid[..., None], 0)
        index = self.order[..., None].expand_as(hidden)
        return hidden.new_zeros(len(hidden), n, hidden.shape[2]).scatter(1, index, hidden)
