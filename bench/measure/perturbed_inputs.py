"""Inputs for timed calls, none of which a method has seen before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from methods.base import SequenceInfo

Input = tuple[Tensor, SequenceInfo]

TRIES = 16
"""Further tries would find no other arrangement: all tokens are equal."""
REPLACED = 4
"""Tokens of a row that are replaced at each use. With one, a row of two kinds of tokens has some
ten thousand arrangements, and a few hundred calls would use some of them twice."""


class PerturbedInputs:
    """Batches whose document tokens are rotated at each use, without a seed: the same tokens at the
    same cost, but no call sees the input of an earlier call in this process or another. The memory
    is reused, as in a served model."""

    def __init__(self, batches: Sequence[Input]):
        self.batches = batches
        self.random = random.Random()
        self.original = [ids.clone() for ids, _ in batches]
        # Of each row, the positions that are neither padding, nor VIP, nor last.
        self.free: list[list[Tensor]] = []
        for ids, sequence in batches:
            free = torch.ones_like(ids, dtype=torch.bool)
            free[:, -1] = False
            if sequence.valid is not None:
                free &= sequence.valid
            if sequence.vip is not None:
                free &= ~sequence.vip
            self.free.append([row.nonzero()[:, 0] for row in free])

    @property
    def tokens(self) -> float:
        """Mean number of tokens of a row over the batches, padding included."""
        return fmean(ids.shape[1] for ids, _ in self.batches)

    def current(self, i: int) -> Input:
        """Batch i as it was last used."""
        return self.batches[i % len(self.batches)]

    def restored(self, i: int) -> Input:
        """Batch i with its original tokens."""
        return self.put(i, self.original[i % len(self.batches)])

    def put(self, i: int, ids: Tensor) -> Input:
        """Batch i with these token ids."""
        i %= len(self.batches)
        self.batches[i][0].copy_(ids)
        return self.batches[i]

    def perturbed(self, i: int, drawn: Tensor | None = None) -> Input:
        """Batch i with its document tokens rotated and a few of them replaced; or with the ids
        `drawn` before."""
        if drawn is not None:
            return self.put(i, drawn)
        i %= len(self.batches)
        ids, _ = self.batches[i]
        for row, positions in enumerate(self.free[i]):
            if len(positions) > 2:
                ids[row, positions] = self._new(
                    self.original[i][row, positions], ids[row, positions]
                )
        return self.batches[i]

    def _new(self, tokens: Tensor, last: Tensor) -> Tensor:
        """The tokens rotated, and REPLACED of them replaced by other values. Most tokens differ
        from those of `last`, since a model may overlook a few; the result differs even if nearly
        all tokens are equal, as in an image of a few lines."""
        most, best = 0, tokens
        for _ in range(TRIES):
            new = tokens.roll(self.random.randrange(len(tokens)))
            for target in self.random.sample(range(len(new)), min(REPLACED, len(new))):
                others = tokens[tokens != new[target]]
                if len(others):
                    new[target] = others[self.random.randrange(len(others))]
            changed = int((new != last).sum())
            if changed > most:
                most, best = changed, new
            if 2 * changed > len(new):
                break
        return best
