"""The contract of a method: what a long-context method answers, and what it is told.

A method answers at most two questions: how one attention layer reads (`attend`) and how the
stack of layers is walked (`encode`). Vanilla answers neither.
Shapes: B batch, H heads, n tokens, d head size, D model size.

Grouped queries (Ainslie et al., arXiv 2305.13245): where G query heads share a key head, keys and
values arrive once for each group, [B, H/G, n, d], as a cache holds them. torch's fused attention
takes them so (`enable_gqa`); `per_head` repeats them for what doesn't.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequence:
    """What the layers know of their tokens.

    positions         [B, n] int64; None: 0 … n-1 in every row
    valid             [B, n] bool, False at padding; None: no padding
    vip               [B, n] bool, the tokens a method must keep whole (the query); None: none
    log_multiplicity  [B, n] float, log of how many tokens each stands for; None: one each
    """

    positions: Tensor | None = None
    valid: Tensor | None = None
    vip: Tensor | None = None
    log_multiplicity: Tensor | None = None
    causal: bool = False

    def replace(self, **changes: object) -> Sequence:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def key_bias(self, dtype: torch.dtype) -> Tensor | None:
        """[B, 1, 1, n] to add to the scores of these tokens as keys: their log-multiplicity,
        and the dtype's lowest number at padding. None when there is nothing to add."""
        if self.valid is None and self.log_multiplicity is None:
            return None
        if self.log_multiplicity is not None:
            bias = self.log_multiplicity.to(dtype)
        else:
            assert self.valid is not None
            bias = torch.zeros(self.valid.shape, dtype=dtype, device=self.valid.device)
        if self.valid is not None:
            bias = bias.masked_fill(~self.valid, torch.finfo(dtype).min)
        return bias[:, None, None, :]


class PositionBias(Protocol):
    """A bias that depends on the distance of positions alone, such as T5's; evaluated only where
    it is needed."""

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, q, k] (B may be 1) for positions [B, q] and [B, k]; a tensor of its own, which
        the caller may overwrite."""
        ...

    def diagonals(self, n: int) -> Tensor:
        """[H, 2n-1]: the bias at key position minus query position = -(n-1) … n-1."""
        ...


@dataclass(frozen=True)
class Call:
    """One use of one attention layer, as `attend` sees it: self-attention over `sequence`.

    Where a method decodes, each new token is one such use too: `sequence` then
    describes all keys, isn't causal, and the query [B, H, 1, d] is its last token.
    """

    sequence: Sequence
    scale: float
    layer: int
    bias: PositionBias | None = None
    dropout: float = 0.0


class Memory(Protocol):
    """What a method keeps of past tokens while a model decodes, for one batch."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        """query [B, H, t, d], the last t tokens; key and value [B, H or a divisor, n, d], all so
        far → [B, H, t, d]. Each sees the tokens before it and itself. Keys that come for the
        first time are added to what is kept; nothing is built anew."""
        ...


class Layer(Protocol):
    """One layer of a model's stack, residuals included."""

    def __call__(self, hidden: Tensor, sequence: Sequence) -> Tensor:
        """hidden [B, n, D] → [B, n, D]; the method's own `attend` does the attention."""
        ...

    def scores(
        self, queries: Tensor, query_sequence: Sequence, keys: Tensor, key_sequence: Sequence
    ) -> Tensor:
        """This layer's own attention scores before the softmax, position bias included and
        multiplicity left out: queries [B, q, D] and keys [B, k, D] → [B, H, q, k]."""
        ...


class NormedLayer(Layer, Protocol):
    """A pre-norm layer that may also be entered behind its first norm (where a method asks)."""

    def normed(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, D] → [B, n, D] after the norm before this layer's attention."""
        ...

    def from_normed(self, normed: Tensor, sequence: Sequence) -> Tensor:
        """normed [B, n, D] → [B, n, D]: attention over `normed`, which is its residual too, and
        the rest of the layer."""
        ...


@dataclass(frozen=True)
class Shape:
    """What is asked of a method before anything runs."""

    length: int
    batch: int
    heads: int
    head_size: int
    layers: int
    hidden_size: int
    causal: bool = False
    position_bias: bool = False
    training: bool = False
    bytes_per_element: int = 4


class Unsupported(Exception):
    """A method can't do what was asked; the message says why, in words."""


@dataclass(frozen=True)
class Method:
    """Exact attention, layer after layer. Subclasses are frozen dataclasses: a field is a
    hyper-parameter, and changing one makes another cell."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        """query [B, H, n, d], key and value [B, H or a divisor, n, d] → [B, H, n, d]."""
        from methods.vanilla import exact_attention

        return exact_attention(query, key, value, call)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        """hidden [B, n, D] → [B, n, D] after all layers (the stack's last norm comes after)."""
        for layer in layers:
            hidden = layer(hidden, sequence)
        return hidden

    def encode_shorter(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        """`encode` for a family that pools what comes out, and so needs no state for each token:
        hidden [B, m, D], with what is known of these m tokens (their order kept, CLS first)."""
        return self.encode(layers, hidden, sequence), sequence

    def decodes(self) -> bool:
        """Whether the new tokens of a causal model are read by `attend` too, or by `memory()`;
        else they read all keys exactly."""
        return False

    def memory(self) -> Memory | None:
        """An empty memory for decoding; None: `attend` reads all keys anew for each token."""
        return None

    def unsupported(self, shape: Shape) -> str | None:
        """Why this can't be done, or None. Asked before anything runs."""
        return None

    def exact(self) -> Method | None:
        """This method with the parameters at which it equals vanilla, up to rounding, on inputs
        of at most 2,048 tokens; None where it has no such limit."""
        return None

    def small(self) -> Method:
        """This method with parameters at which it is far from exact on a few dozen tokens: what
        `bench check` runs. The default is for methods that are so already, or always exact."""
        return self

    def diagnose(self, query: Tensor, key: Tensor, call: Call) -> dict[str, float]:
        """How well this use of one layer chose what to read; empty where nothing is chosen.

        recall     share of the heaviest keys that were read, 0 to 1
        mass       share of exact attention's weight on the keys that were read
        mass_best  the same for the heaviest keys: no choice of as many has more
        """
        return {}

    def state_bytes(self, shape: Shape) -> int | None:
        """The largest memory that theory promises for the walk beyond weights and the hidden
        states at its two ends; None where no theory is given."""
        return None


def per_head(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Keys and values [B, H/G, n, d] → [B, H, n, d], one for each of the query's heads."""
    groups = query.shape[1] // shared[0].shape[1]
    return [x if groups == 1 else x.repeat_interleave(groups, 1) for x in shared]
