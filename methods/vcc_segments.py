"""The plain layers that VCC begins with (arXiv 2305.04241, §4)."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import Layer, Sequence

GROUP_TOKENS = 4096  # segments that run at once hold so many tokens: more only costs memory


def in_segments(layers: Items[Layer], hidden: Tensor, known: Sequence, size: int) -> Tensor:
    """hidden [B, n, D], padding at the end → the same after layers in which each token sees its
    segment of `size` tokens alone. `known` has positions; its VIP marks don't matter."""
    batch, n, width = hidden.shape
    if not layers:
        return hidden
    size = min(size, n)
    short = -n % size
    positions, valid = known.positions, known.valid
    assert positions is not None
    if valid is None:
        valid = torch.ones_like(positions, dtype=torch.bool)
    after = positions[:, -1:] + 1 + torch.arange(short, device=hidden.device)
    positions = torch.cat((positions, after), 1).view(-1, size)
    valid = pad(valid, (0, short)).view(-1, size)
    segments = pad(hidden, (0, 0, 0, short)).view(-1, size, width)
    output = torch.zeros_like(segments)
    whole = valid.all(1)
    for chosen in (whole, valid.any(1) & ~whole):  # a whole segment needs no mask: faster
        index, step = chosen.nonzero()[:, 0], max(1, GROUP_TOKENS // size)
        for group in (index[i : i + step] for i in range(0, len(index), step)):
            told = Sequence(positions[group], None if chosen is whole else valid[group])
            part = segments.index_select(0, group)
            for layer in layers:
                part = layer(part, told)
            output.index_copy_(0, group, part)
    return output.view(batch, n + short, width)[:, :n]
