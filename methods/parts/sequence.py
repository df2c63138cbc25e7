"""Metadata of an attention layer's tokens, and the settings of its call.

Shapes: B batch, H heads, n tokens, d head size, D model size.

Grouped-query attention (Ainslie et al., arXiv 2305.13245): where G query heads share a key head,
keys and values are passed once a group, [B, H/G, n, d], as a KV cache stores them. torch's fused
attention takes that layout (`enable_gqa`); `parts.attention.per_head` repeats them elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class SequenceInfo:
    """Metadata of a layer's tokens.

    positions         [B, n] int64; None: 0 … n-1 in every row
    valid             [B, n] bool, False at padding; None: no padding
    vip               [B, n] bool, True for tokens that a method must keep whole (the query);
                      None: none
    log_multiplicity  [B, n] float, log of the number of tokens that each one represents; None: one
                      each
    """

    positions: Tensor | None = None
    valid: Tensor | None = None
    vip: Tensor | None = None
    log_multiplicity: Tensor | None = None
    causal: bool = False

    def replace(self, **changes: object) -> SequenceInfo:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def followed_by(self, t: int) -> SequenceInfo:
        """The metadata with t further tokens in each row, at the next positions; none is VIP or
        padding."""
        longer = {
            name: pad(old, (0, t), value=value)
            for name, value in (("valid", True), ("vip", False), ("log_multiplicity", 0))
            if (old := getattr(self, name)) is not None
        }
        if self.positions is not None:
            steps = torch.arange(1, t + 1, device=self.positions.device)
            next_ones = self.positions[:, -1:] + steps
            longer["positions"] = torch.cat((self.positions, next_ones), 1)
        return self.replace(**longer)

    def key_bias(self, dtype: torch.dtype) -> Tensor | None:
        """[B, 1, 1, n] to add to the scores of these tokens as keys: their log-multiplicity, and
        the lowest number of the dtype at padding. None where there is nothing to add."""
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
    """A bias on attention scores that depends only on the distance between two positions, such as
    T5's. It is computed only for the requested pairs."""

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, q, k] (B may be 1) for positions [B, q] and [B, k]; a new tensor, which the
        caller may overwrite."""
        ...

    def diagonals(self, n: int) -> Tensor:
        """[H, 2n-1]: the bias at key position minus query position = -(n-1) … n-1."""
        ...


@dataclass(frozen=True)
class ModuleCall:
    """How a model calls one of its attention modules: with hidden [B, n, D] and keyword arguments.
    Methods that adapt code of other packages get it (`Method.reads_modules`)."""

    model: Any
    module: Any
    hidden: Tensor
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class AttentionCall:
    """The settings of one call of `Method.attend` or `Method.mix`: self-attention over the tokens
    of `sequence`. `parameters` are the layer's values of `Method.own_parameters`, by name;
    `model_attention` is a model's own attention where it isn't exact, called like `Method.attend`.
    Decoders may have further settings (`methods.parts.workload.Feature`):

    window   the most tokens that a query reads, up to its own; None: all
    softcap  scores s become softcap · tanh(s / softcap) before biases and masks; None: no cap
    sinks    [H], a score of each head that is part of the softmax but has no value
    rotate   moves queries or keys [B, H, n, d] forward by positions [B or 1, n] or [B, H, n], with
             the model's rotary embedding; None: the model has none
    module   the model's attention module and the arguments of its call, for prompts and methods
             that read it
    memo     if several caches take the same prompt: results computed from this call's queries, keys
             and values, under a key of all else on which they depend; None: one cache takes it

    While a model decodes, `sequence` describes all tokens so far, and the queries are its last
    ones: see `methods.base.KVCache`.
    """

    sequence: SequenceInfo
    scale: float
    layer: int
    bias: PositionBias | None = None
    dropout: float = 0.0
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    model_attention: Callable[[Tensor, Tensor, Tensor, AttentionCall], Tensor] | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    rotate: Callable[[Tensor, Tensor], Tensor] | None = None
    module: ModuleCall | None = None
    memo: dict[Any, Tensor] | None = None
