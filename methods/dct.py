"""The filter of Fourier Transformer (arXiv 2305.15099, §4.1): sequences resampled in the frequency
domain by a DCT, truncation and the inverse DCT. Differentiable."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

MATRIX = 2**18  # numbers in the largest filter that is applied as a matrix: an FFT is slower there
COLUMNS = 64  # columns that are transformed at once on a CPU: more leave the cache


def resample(x: Tensor, length: int) -> Tensor:
    """x [B, N, D] → [B, length, D]: DCT, truncated or filled up with zeros, inverse DCT (eq. 7-8).

    At least float32 inside, whatever x is. Differentiable, any number of times.
    """
    if x.shape[1] == length:
        return x
    output: Tensor = _Resample.apply(x, length)  # type: ignore[no-untyped-call]
    return output


class _Resample(torch.autograd.Function):
    """The DCT is orthonormal: the transpose of a filter N → L is the filter L → N."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int) -> Tensor:
        ctx.length = x.shape[1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        n = max(x.shape[1], length)
        if n * min(x.shape[1], length) <= MATRIX and n <= MATRIX**0.5 * 4:
            return (_matrix(x.shape[1], length, wide.dtype, x.device) @ wide).to(x.dtype)
        columns = COLUMNS if x.device.type == "cpu" else x.shape[2]
        parts = [_by_fft(part, length) for part in torch.split(wide, columns, 2)]
        return torch.cat(parts, 2).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return resample(gradient, ctx.length), None


@lru_cache(maxsize=64)
def _matrix(n: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The filter N → length as one matrix [length, N]."""
    return _by_fft(torch.eye(n, dtype=torch.float64)[None], length)[0].to(device, dtype)


def _by_fft(x: Tensor, length: int) -> Tensor:
    y = dct(x, min(length, x.shape[1]))
    return idct(y if y.shape[1] == length else pad(y, (0, 0, 0, length - y.shape[1])))


def dct(x: Tensor, keep: int) -> Tensor:
    """Orthonormal DCT-II along dim 1 (eq. 1-2): x [B, N, D] → the first coefficients [B, keep, D].

    One FFT of N shuffled numbers (eq. 4-6; eq. 6 has the wrong sign), each of which holds two
    columns, as real and imaginary part: twice as fast as one for each column.
    """
    n = x.shape[1]
    z = _paired(x)
    v = torch.fft.fft(torch.cat((z[:, ::2], z[:, 1::2].flip(1)), 1), dim=1)
    back = torch.cat((v[:, :1], v[:, n - keep + 1 :].flip(1)), 1)
    turn = _turn(n, z.dtype, z.device)[:keep]
    return _single(turn * v[:, :keep] + turn.conj() * back, x.shape[2])


def idct(y: Tensor) -> Tensor:
    """The inverse of `dct` (eq. 3): y [B, L, D] → [B, L, D]."""
    n = y.shape[1]
    z = _paired(y)
    back = torch.cat((1j * z[:, :1], z[:, 1:].flip(1)), 1)
    v = torch.fft.ifft((z - 1j * back) * (_turn(n, z.dtype, z.device).conj() * n), dim=1)
    x = z.new_empty(z.shape)
    x[:, ::2], x[:, 1::2] = v[:, : (n + 1) // 2], v[:, (n + 1) // 2 :].flip(1)
    return _single(x, y.shape[2])


@lru_cache(maxsize=64)
def _turn(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, 1]: exp(-iπk/2n), with half of α_k (eq. 2)."""
    angle = torch.arange(n, dtype=torch.float64) * (-math.pi / (2 * n))
    size = torch.full((n,), math.sqrt(0.5 / n), dtype=torch.float64)
    size[0] = math.sqrt(0.25 / n)
    return torch.polar(size, angle)[:, None].to(device, dtype)


def _paired(x: Tensor) -> Tensor:
    """[B, n, D] → complex [B, n, ⌈D/2⌉]: neighbouring columns as one number."""
    if x.shape[2] % 2:  # where there is nothing to add, pad would copy
        x = pad(x, (0, 1))
    if x.stride(-1) != 1 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()
    return torch.view_as_complex(x.view(*x.shape[:2], -1, 2))


def _single(z: Tensor, columns: int) -> Tensor:
    return torch.view_as_real(z).flatten(2)[..., :columns]
