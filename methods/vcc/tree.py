"""The data structures of VCC (arXiv 2305.04241): tokens in the order of eq. 6, and the tree T(C)
(§3.4)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from methods.base import SequenceInfo

Multiplicity = Literal["valid", "k"]
Rounding = Literal["up", "even"]


class Order:
    """VIP tokens first, then the other valid tokens (eq. 6); padding is left out.

    All rows have n_p seats for VIP tokens, then `blocks` blocks of k, enough for the longest row.
    """

    def __init__(self, info: SequenceInfo, k: int, filled_seats: int = 0) -> None:
        """info: positions [B, n], `valid` and `vip`. A row with fewer VIP tokens than
        `filled_seats` gives the spare seats to its first other tokens. `facts` [B, n, 2]: see Tree;
        in `votes` only VIP tokens count. Raises ValueError for a row whose tokens include no VIP
        token."""
        assert info.positions is not None
        batch, n = info.positions.shape
        every = torch.ones_like(info.positions, dtype=torch.bool)
        valid = every if info.valid is None else info.valid
        vip = ~every if info.vip is None else info.vip & valid
        others = valid & ~vip
        lost = (others.any(1) & ~vip.any(1)).nonzero()[:, 0].tolist()
        if lost:
            raise ValueError(f"vcc: row {lost[0]} has no VIP token; sequence.vip marks the query")
        self.facts = torch.stack((info.positions, valid.long()), -1)
        self.votes = torch.stack((info.positions, vip.long()), -1)
        spare = filled_seats - vip.sum(1, keepdim=True)
        seated = vip | others & (others.cumsum(1) <= spare)
        others = others & ~seated
        self.n_p = int(seated.sum(1).max())
        self.blocks = math.ceil(int(others.sum(1).max()) / k)
        slots = self.n_p + k * self.blocks
        slot = torch.where(seated, seated.cumsum(1), self.n_p + others.cumsum(1)) - 1
        slot = slot.masked_fill(~valid, slots)  # the last slot is for padding
        tokens = torch.arange(n, device=valid.device).expand(batch, n)
        source = tokens.new_full((batch, slots + 1), -1).scatter_(1, slot, tokens)[:, :-1]
        self._block_slot = (slot.clamp(max=slots - 1) - self.n_p).clamp(min=0)
        self._filled, self._source = source >= 0, source.clamp(min=0)
        self._holes = not bool(self._filled.all())

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, …] → VIP tokens [B, n_p, …] and the others [B, blocks·k, …]; empty slots are 0."""
        vips, others = (
            gather_rows(x, self._source[:, span])
            for span in (slice(self.n_p), slice(self.n_p, None))
        )
        if self._holes:
            vips.masked_fill_(~self._filled[:, : self.n_p, None], 0)
            others.masked_fill_(~self._filled[:, self.n_p :, None], 0)
        return vips, others

    def inverse(self, vips: Tensor, others: Tensor) -> Tensor:
        """The inverse of split; values at padding are arbitrary."""
        output = gather_rows(others, self._block_slot)
        batch, n, width = output.shape
        filled = self._filled[:, : self.n_p]
        first = torch.arange(batch, device=output.device)[:, None] * n
        index = (self._source[:, : self.n_p] + first)[filled]
        output.view(-1, width).index_copy_(0, index, vips[filled])
        return output


class Tree:
    """T(C) with two levels (§3.4): the means of blocks, and token - mean for each token (eq. 15,
    with the sign that allows one pass over memory).

    `blocks` [B, blocks] are the ids of each row's blocks, the argument of the other methods. Facts
    [B, …, 2] int64 are a token's position and the number of tokens that it represents, 0 at
    padding. No backward pass needs earlier contents of the tree, so it is updated in place in
    training too.
    """

    def __init__(
        self,
        tokens: Tensor,
        facts: Tensor,
        k: int,
        multiplicity: Multiplicity = "valid",
        rounding: Rounding = "up",
    ) -> None:
        """tokens [B, blocks·k, D], whose memory becomes the offsets; facts [B, blocks·k, 2]."""
        batch, blocks = tokens.shape[0], tokens.shape[1] // k
        self.blocks = torch.arange(batch * blocks, device=tokens.device).view(batch, blocks)
        self._leaf_facts = facts.reshape(-1, k, 2)
        position, filled = self._leaf_facts.unbind(-1)
        count = filled.sum(1)
        some = count.clamp(min=1)
        # Halves are rounded up, so that distances stay the same when all positions shift.
        total = (position * filled).sum(1)
        middle = (2 * total + some) // (2 * some)
        if rounding == "even":
            middle = middle - ((2 * total == (2 * middle - 1) * some) & (middle % 2 == 1)).long()
        counted = count if multiplicity == "valid" else k * (count > 0)
        self._mean_facts = torch.stack((middle, counted), -1)
        self._share = filled.to(tokens.dtype) / some[:, None]
        leaves = tokens.reshape(-1, k, tokens.shape[-1])
        self._mean = self._average(self._share, leaves)
        self._offset = leaves.sub_(self._mean[:, None])
        self._drifted = torch.zeros_like(some, dtype=torch.bool)

    def means(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j, D]"""
        return self._mean.index_select(0, blocks.flatten()).view(*blocks.shape, self._mean.shape[1])

    def leaves(self, blocks: Tensor, rms: Tensor | None = None) -> Tensor:
        """[B, j] → [B, j·k, D]: mean + offset (eq. 16). With rms [B], the tokens of blocks that
        were means in the last layer are rescaled to that root mean square."""
        index = blocks.flatten()
        mean = self._mean.index_select(0, index)[:, None]
        leaves = mean + self._offset.index_select(0, index)
        leaves = leaves.view(*blocks.shape, *leaves.shape[1:])
        if rms is not None:
            own = leaves.square().mean(-1, keepdim=True).sqrt()
            scale = rms[:, None, None, None] / own.clamp(min=1e-12)
            leaves = torch.where(self._drifted[blocks][..., None, None], leaves * scale, leaves)
        return leaves.flatten(1, 2)

    def into_tokens(self) -> Tensor:
        """[B, blocks·k, D]: all leaves in order. It overwrites the tree's memory: call it last."""
        tokens = self._offset.add_(self._mean[:, None])
        return tokens.view(len(self.blocks), -1, tokens.shape[-1])

    def mean_facts(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j, 2]"""
        return self._mean_facts[blocks]

    def leaf_facts(self, blocks: Tensor) -> Tensor:
        """[B, j] → [B, j·k, 2]"""
        return self._leaf_facts[blocks].flatten(1, 2)

    def update(self, fine: Tensor, leaves: Tensor, coarse: Tensor, means: Tensor) -> None:
        """New tokens [B, f·k, D] of fine blocks [B, f], new means [B, c, D] of coarse blocks [B,
        c], whose tokens keep their offsets (eq. 18)."""
        index = fine.flatten()
        leaves = leaves.reshape(-1, *self._offset.shape[1:])
        mean = self._average(self._share.index_select(0, index), leaves)
        self._offset.index_copy_(0, index, leaves - mean[:, None])
        self._mean.index_copy_(0, index, mean)
        self._mean.index_copy_(0, coarse.flatten(), means.flatten(0, 1))
        self._drifted[index], self._drifted[coarse.flatten()] = False, True

    @staticmethod
    def _average(share: Tensor, leaves: Tensor) -> Tensor:
        return torch.bmm(share[:, None], leaves)[:, 0]


def sequence_info(facts: Tensor) -> SequenceInfo:
    """[B, r, 2] position and count → the metadata of these tokens for a layer."""
    positions, count = facts.unbind(-1)
    return SequenceInfo(positions, count > 0, log_multiplicity=count.clamp(min=1).double().log())


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """[B, n, D] and [B, j] → [B, j, D]: x[b, index[b]], as one gather of whole rows."""
    first = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    x = x.reshape(-1, x.shape[-1]).index_select(0, (index + first).flatten())
    return x.view(*index.shape, x.shape[-1])
