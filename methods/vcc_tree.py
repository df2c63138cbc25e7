"""What VCC walks over (arXiv 2305.04241): tokens in the order of eq. 6, and T(C) (§3.4)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from methods.base import Sequence

Multiplicity = Literal["valid", "k"]


class Order:
    """VIP tokens first, then the other valid ones (eq. 6); padding is left out.

    Rows are as long as the longest needs: n_p seats for VIP tokens, then `blocks` of k.
    """

    def __init__(self, known: Sequence, k: int) -> None:
        """known: positions [B, n], and what is valid and VIP. `facts` [B, n, 2]: see Tree.
        Raises ValueError for a row with tokens, and no VIP among them."""
        assert known.positions is not None
        batch, n = known.positions.shape
        every = torch.ones_like(known.positions, dtype=torch.bool)
        valid = every if known.valid is None else known.valid
        vip = ~every if known.vip is None else known.vip & valid
        others = valid & ~vip
        lost = (others.any(1) & ~vip.any(1)).nonzero()[:, 0].tolist()
        if lost:
            raise ValueError(f"vcc: row {lost[0]} has no VIP token; sequence.vip marks the query")
        self.facts = torch.stack((known.positions, valid.long()), -1)
        self.n_p = int(vip.sum(1).max())
        self.blocks = math.ceil(int(others.sum(1).max()) / k)
        seats = self.n_p + k * self.blocks
        seat = torch.where(vip, vip.cumsum(1), self.n_p + others.cumsum(1)) - 1
        seat = seat.masked_fill(~valid, seats)  # one more seat, for the padding
        tokens = torch.arange(n, device=valid.device).expand(batch, n)
        source = tokens.new_full((batch, seats + 1), -1).scatter_(1, seat, tokens)[:, :-1]
        self._block_seat = (seat.clamp(max=seats - 1) - self.n_p).clamp(min=0)
        self._filled, self._source = source >= 0, source.clamp(min=0)
        self._holes = not bool(self._filled.all())

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, …] → VIP tokens [B, n_p, …] and the others [B, blocks·k, …]; empty seats are 0."""
        vips, others = (
            rows(x, self._source[:, span]) for span in (slice(self.n_p), slice(self.n_p, None))
        )
        if self._holes:
            vips.masked_fill_(~self._filled[:, : self.n_p, None], 0)
            others.masked_fill_(~self._filled[:, self.n_p :, None], 0)
        return vips, others

    def undo(self, vips: Tensor, others: Tensor) -> Tensor:
        """The inverse of split; any numbers at padding."""
        output = rows(others, self._block_seat)
        batch, n, width = output.shape
        whole = self._filled[:, : self.n_p]
        first = torch.arange(batch, device=output.device)[:, None] * n
        index = (self._source[:, : self.n_p] + first)[whole]
        output.view(-1, width).index_copy_(0, index, vips[whole])
        return output


class Tree:
    """T(C) with two levels (§3.4): the means of blocks, and token - mean for each token (eq. 15,
    with the sign that one pass over the tokens' memory gives).

    `blocks` [B, blocks] are the names by which the other methods know the blocks of each row.
    Facts [B, …, 2] int64 are a token's position and how many tokens it stands for, 0 at padding.
    No backward pass needs what the tree held before, so it is written in place in training too.
    """

    def __init__(self, tokens: Tensor, facts: Tensor, k: int, multiplicity: Multiplicity) -> None:
        """tokens [B, blocks·k, D], whose memory becomes the offsets; facts [B, blocks·k, 2]."""
        batch, blocks = tokens.shape[0], tokens.shape[1] // k
        self.blocks = torch.arange(batch * blocks, device=tokens.device).view(batch, blocks)
        self._leaf_facts = facts.reshape(-1, k, 2)
        position, filled = self._leaf_facts.unbind(-1)
        count = filled.sum(1)
        some = count.clamp(min=1)
        # The mean position; halves go up: rounding them to even, as the official code does, would
        # let a shift of all positions change the distances.
        middle = (2 * (position * filled).sum(1) + some) // (2 * some)
        counted = count if multiplicity == "valid" else k * (count > 0)
        self._mean_facts = torch.stack((middle, counted), -1)
        self._share = filled.to(tokens.dtype) / some[:, None]
        leaves = tokens.reshape(-1, k, tokens.shape[-1])
        self._mean = self._average(self._share, leaves)
        self._offset = leaves.sub_(self._mean[:, None])

    def means(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j, D]"""
        return self._mean.index_select(0, blocks.flatten()).view(*blocks.shape, self._mean.shape[1])

    def leaves(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j·k, D]: mean + offset (eq. 16)."""
        index = blocks.flatten()
        mean = self._mean.index_select(0, index)[:, None]
        leaves = mean + self._offset.index_select(0, index)
        return leaves.view(len(blocks), -1, leaves.shape[-1])

    def into_tokens(self) -> Tensor:
        """[B, blocks·k, D]: all leaves, in order. They take the tree's memory: it ends here."""
        tokens = self._offset.add_(self._mean[:, None])
        return tokens.view(len(self.blocks), -1, tokens.shape[-1])

    def mean_facts(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j, 2]"""
        return self._mean_facts[blocks]

    def leaf_facts(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j·k, 2]"""
        return self._leaf_facts[blocks].flatten(1, 2)

    def update(self, fine: Tensor, leaves: Tensor, coarse: Tensor, means: Tensor) -> None:
        """New tokens [B, f·k, D] of fine blocks [B, f], new means [B, c, D] of coarse ones [B, c],
        whose tokens follow with their offsets unchanged (eq. 18)."""
        index = fine.flatten()
        leaves = leaves.reshape(-1, *self._offset.shape[1:])
        mean = self._average(self._share.index_select(0, index), leaves)
        self._offset.index_copy_(0, index, leaves - mean[:, None])
        self._mean.index_copy_(0, index, mean)
        self._mean.index_copy_(0, coarse.flatten(), means.flatten(0, 1))

    @staticmethod
    def _average(share: Tensor, leaves: Tensor) -> Tensor:
        return torch.bmm(share[:, None], leaves)[:, 0]


def described(facts: Tensor) -> Sequence:
    """[B, r, 2] position and count → what a layer is told of these tokens."""
    positions, count = facts.unbind(-1)
    return Sequence(positions, count > 0, log_multiplicity=count.clamp(min=1).double().log())


def rows(x: Tensor, index: Tensor) -> Tensor:
    """[B, n, D] and [B, j] → [B, j, D]: x[b, index[b]], as one gather of whole rows."""
    first = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    x = x.reshape(-1, x.shape[-1]).index_select(0, (index + first).flatten())
    return x.view(*index.shape, x.shape[-1])
