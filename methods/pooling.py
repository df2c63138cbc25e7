"""Means of neighbouring tokens, each weighted by how many tokens it stands for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.sequence import SequenceInfo


def counts_of(sequence: SequenceInfo, like: Tensor) -> Tensor:
    """[B or 1, 1, n, 1]: how many tokens each token of `like` [B, H, n, d] stands for."""
    if sequence.log_multiplicity is None:
        return like.new_ones(1, 1, like.shape[2], 1)
    return sequence.log_multiplicity.exp().to(like.dtype)[:, None, :, None]


def block_means(counts: Tensor, size: int, *tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Blocks of `size` tokens, the last of which may have fewer: their counts [B or 1, 1, N, 1] and
    the means [B, H, N, d] of tensors [B, H, n, d]."""

    def sums(x: Tensor) -> Tensor:
        padded = pad(x, (0, 0, 0, -x.shape[2] % size))
        return padded.view(*x.shape[:2], -1, size, x.shape[3]).sum(3)

    totals = sums(counts)
    return totals, [sums(x * counts) / totals for x in tensors]


def segment_means(counts: Tensor, segments: int, *tensors: Tensor) -> list[Tensor]:
    """Means [B, H, segments, d] of tensors [B, H, n, d] over that many stretches of tokens, whose
    lengths differ by one at most."""
    n = tensors[0].shape[2]
    index = torch.arange(n, device=counts.device) * segments // n

    def sums(x: Tensor) -> Tensor:
        shape = (*x.shape[:2], segments, x.shape[3])
        return x.new_zeros(shape).index_add(2, index, x)

    totals = sums(counts)
    return [sums(x * counts) / totals for x in tensors]
