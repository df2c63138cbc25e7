"""Fourier Transformer (He et al., arXiv 2305.15099): sequences shortened in the frequency domain.

Before some layers a spectral filter takes the DCT of the hidden states along the sequence, keeps
the lowest ⌈rN⌉ frequencies and transforms those back, to ⌈rN⌉ states (§4.1). The following layers
are unchanged and run on fewer tokens.

Official code: LUMIA-Group/FourierTransformer (no licence found; its copy of fairseq is MIT).

Differs from the official code:
- Padding is left out of the spectrum and stays masked; there it is filtered and read.
- LRA: a filter is between layers (§4.1); there after the layer's first norm (`residual`).
- ⌈rN⌉ is computed from the exact product (7 of 100 at r=0.07); there from the rounded one (8).
- States keep their dtype; there encoder-decoders go on in half precision.
- Upsampling leaves out a first token that isn't filtered (`pooling`); there it is interpolated.
- Without `global_residual` states are upsampled as well; there the decoder gets the short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

from torch import Tensor

from methods.base import (
    Layer,
    Method,
    NormedLayer,
    PostNormLayer,
    SequenceInfo,
    Unsupported,
    Workload,
)
from methods.fourier.filter import SpectralFilter
from methods.parts.dense import DenseAttention
from methods.parts.parameters import NonNegative, Range, Text
from methods.parts.sequence import Packed

CAUSAL = "a filtered state depends on all tokens: it would show a causal model its future (§7)"
SHORT = "upsample is false, and this model needs a state for every token"
NO_NORM = "residual is 'normed', and this model's layers can't be entered after their first norm"


@dataclass(frozen=True)
class Fourier(DenseAttention):
    """Spectral filters between layers, whose attention is exact, by a choice of kernel.

    layers    index of the layer before which a filter runs, or several, such as "2,4"
    r         share of the frequencies that a filter keeps
    pooling   "cls": the first token is not filtered, but still counts in N (official LRA code)
    upsample  the output states are repeated to the tokens of the input (nearest, §4.1
              encoder–decoder); false: they are returned unchanged, for families that pool
    global_residual  upsampled states are added to the inputs of the filters before the encoder's
              last norm (official): the last layer's own in BART and BERT, the stack's in T5
    rescale   filtered states are multiplied by √(⌈rN⌉/N), so that a constant keeps its value; in
              the paper and the official code it grows
    residual  "raw": filters are between layers (§4.1). "normed", as in the official LRA code: after
              the layer's first norm, and its filtered output is also the residual

    Padding is left out, and comes out as zeros. "normed" raises Unsupported where the layers are
    not `NormedLayer`s.
    """

    layers: NonNegative | Annotated[str, Text(r"\d+(, *\d+)*", "such as '2,4'")] = 0
    r: Annotated[float, Range(above=0, most=1)] = 0.2
    pooling: Literal["mean", "cls"] = "mean"
    upsample: bool = True
    global_residual: bool = True
    rescale: bool = False
    residual: Literal["raw", "normed"] = "raw"

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if not self.upsample:
            raise Unsupported(SHORT)
        return self._run(layers, hidden, sequence)[0]

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return self._run(layers, hidden, sequence)

    def exact_limit(self) -> Method:
        return replace(self, r=1.0, global_residual=False)

    def unsupported(self, workload: Workload) -> str | None:
        if workload.causal:
            return CAUSAL
        return self._missing(workload.layers)

    def state_bytes(self, workload: Workload) -> int:
        """The larger of the first filter's N coefficients and the longest layer's q, k, v and
        output."""
        first = min(self._filters(), default=workload.layers)
        longest = workload.length if first else self._filter.kept(workload.length)
        rows = max(workload.length, 4 * longest)
        return workload.bytes_per_element * workload.batch * rows * workload.hidden_size

    @property
    def _filter(self) -> SpectralFilter:
        return SpectralFilter(self.r, int(self.pooling == "cls"), self.rescale)

    def _filters(self) -> list[int]:
        return sorted({int(index) for index in str(self.layers).split(",")})

    def _missing(self, layers: int) -> str | None:
        last = self._filters()[-1]
        reason = f"layers has {last}, and the model's last is {layers - 1}"
        return reason if last >= layers else None

    def _run(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        if reason := CAUSAL if sequence.causal else self._missing(len(layers)):
            raise Unsupported(reason)
        packed, filters = Packed.of(hidden, sequence), self._filters()
        state, filtered, final_norm = packed, [], None
        runs: list[Callable[[Tensor, SequenceInfo], Tensor]] = [*layers]
        if self.upsample and hasattr(layers[-1], "final_norm"):
            last = cast(PostNormLayer, layers[-1])
            runs[-1], final_norm = last.before_norm, last.final_norm
        for index, run in enumerate(runs):
            if index in filters:
                filtered.append(state)
                if self.residual == "normed":
                    if not hasattr(layers[index], "from_normed"):
                        raise Unsupported(NO_NORM)
                    normed = cast(NormedLayer, layers[index])
                    state, run = state.with_hidden(normed.normed(state.hidden)), normed.from_normed
                state = self._filter.shortened(state)
            state = state.with_hidden(run(state.hidden, state.sequence))
        if not self.upsample:
            return state.hidden, state.sequence
        total = self._filter.upsampled(state, packed)
        if self.global_residual:
            total = sum((self._filter.upsampled(before, packed) for before in filtered), total)
        if final_norm:
            total = final_norm(total)
        return packed.unpacked(total, hidden.shape[1]), sequence
