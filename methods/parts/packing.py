"""Packing of codes of 1 to 4 bits into bytes, and asymmetric round-to-nearest quantisation to 2 or
4 bits."""

from __future__ import annotations

import torch
from torch import Tensor

SPREAD = {
    1: (torch.int64, (28, 14, 7), 0x0101010101010101),
    2: (torch.int32, (12, 6), 0x03030303),
    4: (torch.int16, (4,), 0x0F0F),
}
"""How a byte's codes get a byte each (on a little-endian machine): in a wider type, the byte is
added above itself at these shifts, which puts each code at the start of a byte; the mask cuts it
out. Several times as fast as a write for each code."""


def quantised(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., m, c], whose dimension `dim` is one group → codes packed along the last dimension
    [..., m, c · bits / 8], and the groups' scales and minima in 16 bits, of size 1 along `dim`: x ≈
    code · scale + minimum. A group of equal numbers has scale 0."""
    half = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float16
    levels = (1 << bits) - 1
    least, most = x.aminmax(dim=dim, keepdim=True)
    minimum, scale = least.to(half), ((most - least) / levels).to(half)
    step = scale.to(x.dtype)
    codes = (x - minimum.to(x.dtype)) / torch.where(step == 0, 1, step)
    return packed(codes.round_().clamp_(0, levels).to(torch.uint8), bits), scale, minimum


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., c] in uint8, c a multiple of 8 / bits → [..., c · bits / 8]. With 3 bits, c is a
    multiple of 8; the two lower bits of all codes come first, then the upper bits."""
    if bits == 3:
        return torch.cat((packed(codes & 3, 2), packed(codes >> 2, 1)), -1)
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    placed: Tensor = codes.unflatten(-1, (-1, len(places))) << places
    return placed.sum(-1, dtype=torch.uint8)


def unpacked(packed: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """The codes [..., c] of `packed` as numbers."""
    if bits == 3:
        lower, upper = packed.tensor_split((packed.shape[-1] // 3 * 2,), -1)
        return unpacked(lower, 2, dtype).add_(unpacked(upper, 1, dtype), alpha=4)
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
