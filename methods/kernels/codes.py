"""Native products with keys, and sums of values, that are stored as codes of a few bits. See
`methods.kernels` for the result where a kernel can't run.

Shapes: B batch, G key heads, H query heads, t new tokens, E entries, d head size.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.kernels import structs
from methods.kernels.checks import WIDENED, available, cannot_take, library

TO_A_BYTE = {2: 4, 3: 4, 4: 2, 8: 1}
"""Codes to a byte, by their bits; of 3 bits, the lower two of each."""
ORDER = tuple(float(code) for code in range(16))
"""The numbers of codes that are numbers themselves."""


@dataclass(frozen=True)
class Codes:
    """Numbers [B, G, E, d] as codes of a few bits: scale · number of the code + minimum.

    codes    [B, G, E, d · bits / 8], from `methods.parts.packing.packed`; 8 bits: signed
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
