"""VCC's first, plain layers, which run on segments (arXiv 2305.04241, §4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import Layer, SequenceInfo

GROUP_TOKENS = 4096  # tokens of segments that run at once; more would only cost memory


def in_segments(layers: Sequence[Layer], hidden: Tensor, info: SequenceInfo, size: int) -> Tensor:
    """hidden [B, n, D], padding at the end → the same after layers in which each token attends only
    to its segment of `size` tokens. `info` has positions; its VIP marks are not used."""
    batch, n, width = hidden.shape
    if not layers:
        return hidden
    size = min(size, n)
    short = -n % size
    positions, valid = info.positions, info.valid
    assert positions is not None
    if valid is None:
        valid = torch.ones_like(positions, dtype=torch.bool)
    after = positions[:, -1:] + 1 + torch.arange(short, device=hidden.device)
    positions = torch.cat((positions, after), 1).view(-1, size)
    valid = pad(valid, (0, short)).view(-1, size)
    segments = pad(hidden, (0, 0, 0, short)).view(-1, size, width)
    output = torch.zeros_like(segments)
    whole = valid.all(1)
    for chosen in (whole, valid.any(1) & ~whole):  # a segment without padding needs no mask
        index, step = chosen.nonzero()[:, 0], max(1, GROUP_TOKENS // size)
        for group in (index[i : i + step] for i in range(0, len(index), step)):
            group_info = SequenceInfo(positions[group], None if chosen is whole else valid[group])
            part = segments.index_select(0, group)
            for layer in layers:
                part = layer(part, group_info)
            output.index_copy_(0, group, part)
    return output.view(batch, n + short, width)[:, :n]
