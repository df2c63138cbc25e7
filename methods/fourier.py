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
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, pad

from methods.base import Layer, Method, NormedLayer, Sequence, Shape, Unsupported
from methods.dct import resample
from methods.packed import Packed

CHOICES = {"pooling": ("mean", "cls"), "residual": ("raw", "normed"), "norm": ("stack", "layer")}
CAUSAL = "a filtered state is made of all tokens: it would show a causal model its future (§7)"
SHORT = "upsample is false, and this model needs a state for every token"
NO_NORM = "residual is 'normed', and this model's layers can't be entered behind their first norm"


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
        packed = Packed.of(hidden, sequence)
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

    def _filter(self, state: Packed) -> Packed:
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
        return Packed(hidden, kept, positions, state.order)

    def _upsampled(self, state: Packed, to: Packed) -> Tensor:
        """The nearest state for each token of `to`, in hidden [B, m, D]."""
        if state.lengths == to.lengths:
            return state.hidden
        cls, device = int(self.pooling == "cls"), state.hidden.device
        short, long = (torch.tensor(x.lengths, device=device)[:, None] - cls for x in (state, to))
        token = torch.arange(to.hidden.shape[1], device=device)[None] - cls
        index = torch.minimum(token, long - 1) * short // long.clamp(min=1) + cls
        index = torch.where(token < 0, 0, index).clamp(min=0)
        return state.hidden.gather(1, index[..., None].expand(-1, -1, state.hidden.shape[2]))
