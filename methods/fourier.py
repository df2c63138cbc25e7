"""Fourier Transformer (He et al., arXiv 2305.15099): sequences shortened in the frequency domain.

Before some layers a spectral filter takes the DCT of the hidden states along the sequence, keeps
the lowest ⌈rN⌉ frequencies and transforms those back, to ⌈rN⌉ states (§4.1). The layers after it
are the ordinary ones, on fewer tokens.
What the official code does and this doesn't: padding in the spectrum, masks ignored after a
filter, complex FFTs of real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, pad

from methods.base import Layer, Method, NormedLayer, Sequence, Shape, Unsupported

CHOICES = {"pooling": ("mean", "cls"), "residual": ("raw", "normed"), "norm": ("stack", "layer")}
CAUSAL = "a filtered state is made of all tokens: it would show a causal model its future (§7)"
SHORT = "upsample is false, and this model needs a state for every token"
NO_NORM = "residual is 'normed', and this model's layers can't be entered behind their first norm"
MATRIX = 2**18  # numbers in the largest filter that is applied as a matrix: an FFT is slower there
COLUMNS = 64  # columns that are transformed at once on a CPU: more leave the cache


@dataclass(frozen=True)
class Fourier(Method):
    """layers    index of the layer that a filter stands before, or several, such as "2,4"
    r         share of the frequencies that a filter keeps
    pooling   "cls" keeps the first token out of the filters; it counts in N all the same (official)
    upsample  the states that come out are repeated to the tokens of the input (nearest, §4.1
              encoder–decoder); false: they come out as they are, for families that pool
    global_residual  upsampled states are added to those that went into the filters
    norm      what renormalizes that sum: the stack's own last norm, or, for models whose layers
              end in a norm (BART), a "layer" norm without weights
    rescale   filtered states times √(⌈rN⌉/N), so that a constant stays what it is; the paper and
              the official code let it grow
    residual  "raw": filters stand between layers (§4.1). "normed", as in the official LRA code:
              behind the layer's first norm, whose filtered output is then the residual as well

    Padding takes no part, and comes out as zeros. With "normed" raises Unsupported where layers
    are no `NormedLayer`.
    """

    layers: int | str = 0
    r: float = 0.2
    pooling: str = "mean"
    upsample: bool = True
    global_residual: bool = True
    norm: str = "stack"
    rescale: bool = False
    residual: str = "raw"

    def __post_init__(self) -> None:
        for name, accepted in CHOICES.items():
            if getattr(self, name) not in accepted:
                words = " or ".join(accepted)
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is {words}")
        if not 0 < self.r <= 1:
            raise ValueError(f"r is {self.r}; it is above 0 and at most 1")
        if any(index < 0 for index in self._filters()):
            raise ValueError(f"layers is {self.layers!r}; layers are counted from 0")

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        if not self.upsample:
            raise Unsupported(SHORT)
        return self._walk(layers, hidden, sequence)[0]

    def encode_shorter(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        return self._walk(layers, hidden, sequence)

    def exact(self) -> Method:
        return replace(self, r=1.0, global_residual=False)

    def unsupported(self, shape: Shape) -> str | None:
        if shape.causal:
            return CAUSAL
        return self._missing(shape.layers)

    def state_bytes(self, shape: Shape) -> int:
        """The first filter's N coefficients, or q, k, v and the output of the longest layer."""
        first = min(self._filters(), default=shape.layers)
        longest = shape.length if first else self._kept(shape.length)
        rows = max(shape.length, 4 * longest)
        return shape.bytes_per_element * shape.batch * rows * shape.hidden_size

    def _filters(self) -> list[int]:
        try:
            return sorted({int(index) for index in str(self.layers).split(",")})
        except ValueError:
            raise ValueError(f"layers is {self.layers!r}; it is such as 0 or '2,4'") from None

    def _missing(self, layers: int) -> str | None:
        last = self._filters()[-1]
        return (
            f"layers has {last}, and the model's last is {layers - 1}" if last >= layers else None
        )

    def _kept(self, n: int) -> int:
        """How many of n tokens are left, the CLS token included."""
        cls = int(self.pooling == "cls")
        if n <= cls:
            return n
        return cls + min(n - cls, math.ceil(self.r * n - 1e-9))  # 0.07·100 is 7, not a bit more

    def _walk(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        reason = CAUSAL if sequence.causal else self._missing(len(layers))
        if reason:
            raise Unsupported(reason)
        packed = _Packed.of(hidden, sequence)
        now, states = packed, []
        for index, layer in enumerate(layers):
            if index not in self._filters():
                now = now.with_hidden(layer(now.hidden, now.sequence))
                continue
            states.append(now)
            if self.residual == "raw":
                now = self._filter(now)
                now = now.with_hidden(layer(now.hidden, now.sequence))
                continue
            if not hasattr(layer, "from_normed"):
                raise Unsupported(NO_NORM)
            entered = cast(NormedLayer, layer)
            now = self._filter(now.with_hidden(entered.normed(now.hidden)))
            now = now.with_hidden(entered.from_normed(now.hidden, now.sequence))
        if not self.upsample:
            return now.hidden, now.sequence
        total = self._upsampled(now, packed)
        if self.global_residual:
            total = sum((self._upsampled(state, packed) for state in states), total)
        if self.norm == "layer":
            total = layer_norm(total, total.shape[-1:])
        return packed.unpacked(total, hidden.shape[1]), sequence

    def _filter(self, state: _Packed) -> _Packed:
        """Rows of the same length go through one transform."""
        cls = int(self.pooling == "cls")
        kept = [self._kept(n) for n in state.lengths]
        parts, places, rows = [], [], []
        for n in sorted(set(state.lengths)):
            row = [i for i, length in enumerate(state.lengths) if length == n]
            m = self._kept(n)
            part, place = state.hidden, state.positions
            if len(row) < len(kept):
                part, place = part[row], place[row]
            short = part[:, :n]
            source = torch.arange(m, device=place.device)  # a short state's middle, among tokens
            if m > cls:
                scale = math.sqrt((m - cls) / (n - cls)) if self.rescale else 1.0
                short = torch.cat((part[:, :cls], resample(part[:, cls:n], m - cls) * scale), 1)
                source[cls:] = cls + (2 * source[: m - cls] + 1) * (n - cls) // (2 * (m - cls))
            end = (0, max(1, *kept) - m)
            parts.append(pad(short, (0, 0, *end)))
            places.append(pad(place[:, source], end))
            rows += row
        order = torch.tensor(rows, device=state.hidden.device).argsort()
        hidden, positions = torch.cat(parts), torch.cat(places)
        if len(parts) > 1:
            hidden, positions = hidden[order], positions[order]
        return _Packed(hidden, kept, positions, state.order)

    def _upsampled(self, state: _Packed, to: _Packed) -> Tensor:
        """The nearest state for each token of `to`, in hidden [B, m, D]."""
        if state.lengths == to.lengths:
            return state.hidden
        cls, device = int(self.pooling == "cls"), state.hidden.device
        short, long = (torch.tensor(x.lengths, device=device)[:, None] - cls for x in (state, to))
        token = torch.arange(to.hidden.shape[1], device=device)[None] - cls
        index = torch.minimum(token, long - 1) * short // long.clamp(min=1) + cls
        index = torch.where(token < 0, 0, index).clamp(min=0)
        return state.hidden.gather(1, index[..., None].expand(-1, -1, state.hidden.shape[2]))


@dataclass(frozen=True)
class _Packed:
    """Rows with their padding at the end: hidden [B, m, D], lengths, positions [B, m]; order
    [B, n] int64, or None: where in the input each token stood."""

    hidden: Tensor
    lengths: list[int]
    positions: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, hidden: Tensor, sequence: Sequence) -> _Packed:
        batch, n, size = hidden.shape
        positions, valid = sequence.positions, sequence.valid
        if positions is None:
            positions = torch.arange(n, device=hidden.device)[None]
        positions = positions.expand(batch, n)
        if valid is None or bool(valid.all()):
            return cls(hidden, [n] * batch, positions, None)
        lengths = valid.sum(1).tolist()
        order = (~valid).long().argsort(dim=1, stable=True)[:, : max(1, *lengths)]
        hidden = hidden.gather(1, order[..., None].expand(-1, -1, size))
        return cls(hidden, lengths, positions.gather(1, order), order)

    @property
    def sequence(self) -> Sequence:
        m = self.hidden.shape[1]
        if min(self.lengths) == m:
            return Sequence(self.positions)
        lengths = torch.tensor(self.lengths, device=self.hidden.device)
        return Sequence(self.positions, torch.arange(m, device=lengths.device) < lengths[:, None])

    def with_hidden(self, hidden: Tensor) -> _Packed:
        return _Packed(hidden, self.lengths, self.positions, self.order)

    def unpacked(self, hidden: Tensor, n: int) -> Tensor:
        """[B, m, D] → [B, n, D] where the tokens stood; zeros at padding."""
        if self.order is None:
            return hidden
        valid = self.sequence.valid
        if valid is not None:
            hidden = hidden.masked_fill(~valid[..., None], 0)
        index = self.order[..., None].expand_as(hidden)
        return hidden.new_zeros(len(hidden), n, hidden.shape[2]).scatter(1, index, hidden)


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
    return idct(pad(y, (0, 0, 0, length - y.shape[1])))


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
    x = pad(x, (0, x.shape[2] % 2))
    if x.stride(-1) != 1 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()
    return torch.view_as_complex(x.view(*x.shape[:2], -1, 2))


def _single(z: Tensor, columns: int) -> Tensor:
    return torch.view_as_real(z).flatten(2)[..., :columns]
