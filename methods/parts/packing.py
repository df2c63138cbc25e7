"""Numbers in 2 or 4 bits: asymmetric round-to-nearest quantisation, several codes to a byte."""

from __future__ import annotations

import torch
from torch import Tensor

SPREAD = {2: (torch.int32, (12, 6), 0x03030303), 4: (torch.int16, (4,), 0x0F0F)}
"""How a byte's codes get a byte each (on a little-endian machine): in a wider type, the byte is
added above itself at these shifts, which puts each code at the start of a byte; the mask cuts it
out. Several times as fast as a write for each code."""


def quantised(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., m, c] in groups, which are all of its dimension `dim` → codes packed along the last
    dimension [..., m, c · bits / 8], and the groups' scales and minima in 16 bits, 1 along `dim`:
    x ≈ code · scale + minimum. A group of equal numbers has scale 0."""
    half = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float16
    levels = (1 << bits) - 1
    least, most = x.aminmax(dim=dim, keepdim=True)
    minimum, scale = least.to(half), ((most - least) / levels).to(half)
    step = scale.to(x.dtype)
    codes = (x - minimum.to(x.dtype)) / torch.where(step == 0, 1, step)
    codes = codes.round_().clamp_(0, levels).to(torch.uint8)
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=x.device)
    packed = (codes.unflatten(-1, (-1, len(places))) << places).sum(-1, dtype=torch.uint8)
    return packed, scale, minimum


def unpacked(packed: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """The codes of `quantised` [..., m, c] as numbers."""
    kind, shifts, mask = SPREAD[bits]
    codes = packed.to(kind)
    for shift in shifts:
        codes |= codes << shift
    return codes.bitwise_and_(mask).view(torch.uint8).to(dtype)


def restored(
    packed: Tensor, scale: Tensor, minimum: Tensor, bits: int, dtype: torch.dtype
) -> Tensor:
    """The inverse of `quantised`, up to rounding."""
    x = unpacked(packed, bits, dtype)
    return torch.addcmul(minimum.to(dtype), x, scale.to(dtype), out=x)
