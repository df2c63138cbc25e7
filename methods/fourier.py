"""Fourier Transformer (He et al., arXiv 2305.15099): sequences shortened in the frequency domain.

Before some layers a spectral filter takes the DCT of the hidden states along the sequence, keeps
the lowest ⌈rN⌉ frequencies and transforms those back, to ⌈rN⌉ states (§4.1). The layers after it
are the ordinary ones, on fewer tokens.
What the official code does and this doesn't: padding in the spectrum, masks ignored after a
filter, complex FFTs of real numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor
from torch.nn.functional import layer_norm

from methods.base import Layer, Method, NormedLayer, Sequence, Shape, Unsupported
from methods.fourier_filter import SpectralFilter
from methods.packed import Packed
from methods.vanilla import Vanilla

CHOICES = {"pooling": ("mean", "cls"), "residual": ("raw", "normed"), "norm": ("stack", "layer")}
CAUSAL = "a filtered state is made of all tokens: it would show a causal model its future (§7)"
SHORT = "upsample is false, and this model needs a state for every token"
NO_NORM = "residual is 'normed', and this model's layers can't be entered behind their first norm"


@dataclass(frozen=True)
class Fourier(Vanilla):
    """Spectral filters between layers, which read as vanilla's do, by the same choice of kernel.

    layers    index of the layer that a filter stands before, or several, such as "2,4"
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
        super().__post_init__()
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
        longest = shape.length if first else self._filter.kept(shape.length)
        rows = max(shape.length, 4 * longest)
        return shape.bytes_per_element * shape.batch * rows * shape.hidden_size

    @property
    def _filter(self) -> SpectralFilter:
        return SpectralFilter(self.r, int(self.pooling == "cls"), self.rescale)

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

    def _walk(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        reason = CAUSAL if sequence.causal else self._missing(len(layers))
        if reason:
            raise Unsupported(reason)
        packed, filters = Packed.of(hidden, sequence), self._filters()
        now, entered = packed, []
        for index, layer in enumerate(layers):
            read: Callable[[Tensor, Sequence], Tensor] = layer
            if index in filters:
                entered.append(now)
                if self.residual == "normed":
                    if not hasattr(layer, "from_normed"):
                        raise Unsupported(NO_NORM)
                    normed = cast(NormedLayer, layer)
                    now, read = now.with_hidden(normed.normed(now.hidden)), normed.from_normed
                now = self._filter.shortened(now)
            now = now.with_hidden(read(now.hidden, now.sequence))
        if not self.upsample:
            return now.hidden, now.sequence
        total = self._filter.upsampled(now, packed)
        if self.global_residual:
            total = sum((self._filter.upsampled(state, packed) for state in entered), total)
        if self.norm == "layer":
            total = layer_norm(total, total.shape[-1:])
        return packed.unpacked(total, hidden.shape[1]), sequence
