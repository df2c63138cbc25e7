"""The levels of H-Transformer-1D's hierarchy, and which averages each block reads (§6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import SequenceInfo
from methods.parts.blocks import block_means, counts_of, log_of

FAR = ((-2, 2, 3), (-3, -2, 2))
"""Where the blocks are that an even and an odd block read at the next level: their pairs of blocks
are neighbours, and they themselves aren't."""
FAR_CAUSAL = ((0, 0, -2), (0, -3, -2))
"""As FAR, without later blocks; 0: none."""


@dataclass(frozen=True)
class Level:
    """Averages of one level: query, key, value [B, H, n, d], the logs of how many tokens each
    represents [B or 1, n], and the keys that a block reads, [blocks, 3 · averages in a block];
    indices below 0 or from n on don't exist. An average of padding alone represents no tokens."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_counts: Tensor
    key_tokens: Tensor

    @property
    def sequence(self) -> SequenceInfo:
        return SequenceInfo(log_multiplicity=self.log_counts)

    @classmethod
    def of(cls, means: list[Tensor], counts: Tensor, read: Tensor, size: int) -> Level:
        """read [blocks, 3]: the blocks of `size` averages that a block reads."""
        keys = read[..., None] * size + torch.arange(size, device=read.device)
        query, key, value = means
        return cls(query, key, value, log_of(counts)[:, 0, :, 0], keys.flatten(1))


def levels_of(inputs: list[Tensor], sequence: SequenceInfo, rank: int) -> Iterator[Level]:
    """The levels of query, key and value [B, H, n, d]: the tokens in blocks of `rank`, then
    averages of 2, 4, 8, … tokens while these are needed."""
    device, blocks = inputs[0].device, -(-inputs[0].shape[2] // rank)
    own = torch.arange(blocks, device=device)[:, None]
    counts, means = counts_of(sequence, inputs[0]), inputs
    yield Level.of(means, counts, own + torch.tensor((-1, 0, 1), device=device), rank)

    far = torch.tensor(FAR_CAUSAL if sequence.causal else FAR, device=device)
    while blocks > 2:
        finer, values = counts, means[2]
        counts, means = block_means(finer, 2, *means)
        own = torch.arange(blocks, device=device)[:, None]
        steps = far[own[:, 0] % 2]
        read = (own + steps).masked_fill(steps == 0, -1)
        if rank > 1:
            yield Level.of(means, counts, read, rank // 2)
        else:  # each average becomes two blocks
            halves = [x.repeat_interleave(2, 2)[:, :, : finer.shape[2]] for x in means[:2]]
            yield Level.of([*halves, values], finer, read, 1)
        blocks = -(-blocks // 2)
