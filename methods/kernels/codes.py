"""Numbers as codes of a few bits: packing of codes of 1 to 4 bits into bytes, asymmetric
round-to-nearest quantisation to 2 or 4 bits, and native products with keys and sums of values that
are stored so. See `methods.kernels` for the result where a kernel can't run.

Shapes: B batch, G key heads, H query heads, t new tokens, E entries, d head size.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.kernels import structs
from methods.kernels.checks import WIDENED, available, cannot_take, library

SPREAD = {
    1: (torch.int64, (28, 14, 7), 0x0101010101010101),
    2: (torch.int32, (12, 6), 0x03030303),
    4: (torch.int16, (4,), 0x0F0F),
}
"""How a byte's codes get a byte each (on a little-endian machine): in a wider type, the byte is
added above itself at these shifts, which puts each code at the start of a byte; the mask cuts it
out. Several times as fast as a write for each code."""
TO_A_BYTE = {2: 4, 3: 4, 4: 2, 8: 1}
"""Codes to a byte, by their bits; of 3 bits, the lower two of each."""
ORDER = tuple(float(code) for code in range(16))
"""The numbers of codes that are numbers themselves."""


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


@dataclass(frozen=True)
class Codes:
    """Numbers [B, G, E, d] as codes of a few bits: scale · number of the code + minimum.

    codes    [B, G, E, d · bits / 8], from `packed`; 8 bits: signed
    scales   [B, G, E, S] for S groups of channels, or [B, G, E / block, d], float16 or bfloat16
    minima   same shape as scales; None: 0. Keys have minima only with `block`, values only without
    bits     2, 3, 4 or 8
    numbers  the 2^bits numbers that the codes mean; codes of 8 bits are numbers themselves
    block    entries that share the scales of all channels; None: each has its own
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None
    bits: int = 8
    numbers: tuple[float, ...] = ORDER
    block: int | None = None


def code_scores(query: Tensor, keys: Codes) -> Tensor | str:
    """query [B, H, t, d] → its products with the keys [B, H, t, E] in float32, or the reason why it
    can't run."""
    return _run("code_scores", query, keys, keys.codes.shape[2])


def code_sums(weights: Tensor, values: Codes) -> Tensor | str:
    """weights [B, H, t, E] → sums of the values [B, H, t, d] in float32, or the reason why it can't
    run."""
    return _run("code_sums", weights, values, values.codes.shape[3] * 8 // values.bits)


def _run(function: str, rows: Tensor, of: Codes, width: int) -> Tensor | str:
    """Runs a function of the library; `width` is the last dimension of the output."""
    d = of.codes.shape[3] * 8 // of.bits
    reason = cannot_take(rows, dtypes=WIDENED) or _cannot_read(of, d) or available("int8")
    if reason:
        return reason
    batch, heads, entries = of.codes.shape[:3]
    output = torch.empty(*rows.shape[:3], width)
    rows = rows.float().contiguous()
    numbers = of.numbers + (0.0,) * (16 - len(of.numbers))
    arguments = structs.Codes(
        rows=rows.data_ptr(),
        codes=of.codes.data_ptr(),
        scales=of.scales.data_ptr(),
        minima=None if of.minima is None else of.minima.data_ptr(),
        output=output.data_ptr(),
        codes_apart=of.codes.stride(1),
        scales_apart=of.scales.stride(1),
        heads=batch * heads,
        count=rows.shape[1] // heads * rows.shape[2],
        entries=entries,
        d=d,
        bits=of.bits,
        groups=of.scales.shape[3],
        block=of.block or 0,
        bfloat=of.scales.dtype == torch.bfloat16,
        threads=torch.get_num_threads(),
        numbers=(ctypes.c_float * 16)(*numbers),
    )
    getattr(library(), function)(ctypes.byref(arguments))
    return output


def _cannot_read(of: Codes, d: int) -> str | None:
    if not of.codes.numel():
        return "nothing to read"
    if of.bits not in TO_A_BYTE:
        return f"codes of {of.bits} bits"
    unit = structs.LANES * TO_A_BYTE[of.bits]
    if d % unit:
        return f"heads of {d} channels, no multiple of {unit}"
    group = d // of.scales.shape[3]
    if of.block is None and group % unit and group * 2 != unit:
        return f"groups of {group} channels in codes of {of.bits} bits"
    return None
