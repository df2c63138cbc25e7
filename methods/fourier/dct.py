"""The filter of Fourier Transformer (arXiv 2305.15099, §4.1): sequences are resampled by a DCT,
truncation and the inverse DCT. Differentiable."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

MATRIX = 2**16  # entries of the largest transform applied as a matrix: above it, FFTs are faster
COLUMNS = 64  # columns that are transformed at once on a CPU: more fall out of the cache


def resample(x: Tensor, length: int) -> Tensor:
    """x [B, N, D] → [B, length, D]: DCT, truncated or zero-padded, inverse DCT (eq. 7-8).

    Computed in float32 or wider, for any dtype of x. Differentiable any number of times.
    """
    if x.shape[1] == length:
        return x
    output: Tensor = _Resample.apply(x, length)  # type: ignore[no-untyped-call]
    return output


class _Resample(torch.autograd.Function):
    """The DCT is orthonormal, so the transpose of a filter N → L is the filter L → N."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int) -> Tensor:
        ctx.length = x.shape[1]
        return _resampled(x, length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return resample(gradient, ctx.length), None


def _resampled(x: Tensor, length: int) -> Tensor:
    wide, n = x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[1]
    if n * length <= MATRIX:
        return (_filter(n, length, wide.dtype, x.device) @ wide).to(x.dtype)
    columns = COLUMNS if x.device.type == "cpu" else x.shape[2]
    parts = [idct(dct(part, min(n, length)), length) for part in torch.split(wide, columns, 2)]
    return (torch.cat(parts, 2) if len(parts) > 1 else parts[0]).to(x.dtype)


def dct(x: Tensor, keep: int) -> Tensor:
    """Orthonormal DCT-II along dim 1 (eq. 1-2): x [B, N, D] → the first coefficients [B, keep, D].

    One FFT of N permuted complex numbers (eq. 4-6; eq. 6 has the wrong sign). Each packs two
    columns as its real and imaginary part, which is twice as fast as one FFT a column.
    """
    n = x.shape[1]
    if n * keep <= MATRIX:
        return _matrix(n, keep, x.dtype, x.device) @ x
    v = torch.fft.fft(_paired(x.index_select(1, _permutation(n, x.device)[0])), dim=1)
    twiddle, conjugate = _twiddles(n, keep, v.dtype, v.device)
    y = twiddle * v[:, :keep]
    y[:, 1:] += conjugate[1:] * v[:, n - keep + 1 :].flip(1)
    return _single(y, x.shape[2])


def idct(y: Tensor, n: int) -> Tensor:
    """The inverse of `dct` (eq. 3) for N = n, which is also its transpose; missing coefficients are
    0: y [B, at most n, D] → [B, n, D]."""
    keep = y.shape[1]
    if n * keep <= MATRIX:
        return _matrix(n, keep, y.dtype, y.device).T @ y
    z = _paired(y)
    twiddle, conjugate = _twiddles(n, keep, z.dtype, z.device)
    v = conjugate * z
    if keep < n:
        v = pad(v, (0, 0, 0, n - keep))
    v[:, n - keep + 1 :] += (twiddle[1:] * z[:, 1:]).flip(1)
    x = torch.fft.ifft(v, dim=1, norm="forward")
    return _single(x.index_select(1, _permutation(n, x.device)[1]), y.shape[2])


@lru_cache(maxsize=64)
def _filter(n: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The filter n → length as one matrix [length, n]."""
    keep = min(n, length)
    forward, inverse = (_matrix(size, keep, torch.float64, device) for size in (n, length))
    return (inverse.T @ forward).to(dtype)


@lru_cache(maxsize=64)
def _matrix(n: int, keep: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The DCT (eq. 1-2) as a matrix [keep, n]."""
    k, i = (torch.arange(size, dtype=torch.float64) for size in (keep, n))
    cosines = torch.cos(k[:, None] * (2 * i + 1) * (math.pi / (2 * n))) * math.sqrt(2 / n)
    cosines[0] /= math.sqrt(2)
    return cosines.to(device, dtype)


@lru_cache(maxsize=64)
def _twiddles(n: int, keep: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Twiddle factors [keep, 1]: exp(-iπk/2n) times half of α_k (eq. 2), and their conjugates.
    Coefficient 0 has no separate mirror image, so it gets all of α_0."""
    angle = torch.arange(keep, dtype=torch.float64) * (-math.pi / (2 * n))
    size = torch.full((keep,), math.sqrt(0.5 / n), dtype=torch.float64)
    size[0] = math.sqrt(1 / n)
    twiddle = torch.polar(size, angle)[:, None].to(device, dtype)
    return twiddle, twiddle.conj().resolve_conj()


@lru_cache(maxsize=64)
def _permutation(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[n] int64: the even places, then the odd ones in reverse (eq. 4); and its inverse."""
    places = torch.arange(n, device=device)
    order = torch.cat((places[::2], places[1::2].flip(0)))
    return order, order.argsort()


def _paired(x: Tensor) -> Tensor:
    """[B, n, D] → complex [B, n, ⌈D/2⌉]: adjacent columns as one number."""
    if x.shape[2] % 2:  # F.pad copies even if nothing is added
        x = pad(x, (0, 1))
    if x.stride(-1) != 1 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()
    return torch.view_as_complex(x.view(*x.shape[:2], -1, 2))


def _single(z: Tensor, columns: int) -> Tensor:
    """The inverse of `_paired`. FFTs return transposed memory; making it contiguous is twice as
    fast in complex numbers as in real ones."""
    z = z.contiguous()
    return torch.view_as_real(z).flatten(2)[..., :columns]
