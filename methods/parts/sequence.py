"""Metadata of an attention layer's tokens, the settings of its call, and batches without their
padding: packed rows, and calls of methods that cut each row's valid tokens into stretches.

Shapes: B batch, H heads, n tokens, d head size, D model size.

Grouped-query attention (Ainslie et al., arXiv 2305.13245): where G query heads share a key head,
keys and values are passed once a group, [B, H/G, n, d], as a KV cache stores them. torch's fused
attention takes that layout (`enable_gqa`); `parts.attention.per_head` repeats them elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
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
             and values (in the first layer: or from all layers'), under a key of all else on which
             they depend; None: one cache takes it

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


Attend = Callable[[Tensor, Tensor, Tensor, AttentionCall], Tensor]
"""As `Method.attend`."""
AttendUnpadded = Callable[[Tensor, Tensor, Tensor, AttentionCall, Tensor | None], Tensor]
"""As `Method.attend`, for rows without padding: the last argument is `valid` [n] of each row before
its padding was taken away, or None where the batch has no padding."""


def padding_last(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
) -> Tensor:
    """[B, H, n, d] → [B, H, n, d]: the whole batch at once, with each row's padding moved to its
    end; zeros at padding."""
    sequence = call.sequence
    if not _padded(sequence):
        return attend(query, key, value, _with(call, sequence.replace(valid=None)))
    assert sequence.valid is not None
    longest = max(1, int(sequence.valid.sum(1).max()))
    order = (~sequence.valid).long().argsort(dim=1, stable=True)[:, :longest]
    index = order[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])

    def in_order(x: Tensor) -> Tensor:
        return x.gather(2, index[:, : x.shape[1]])

    valid, counts = sequence.valid.gather(1, order), sequence.log_multiplicity
    own = SequenceInfo(
        positions=_positions(sequence).gather(1, order),
        valid=valid,
        log_multiplicity=None if counts is None else counts.gather(1, order),
        causal=sequence.causal,
    )
    output = attend(in_order(query), in_order(key), in_order(value), _with(call, own))
    output = output.masked_fill(~valid[:, None, :, None], 0)
    return torch.zeros_like(query).scatter(2, index, output)


def without_padding(
    attend: AttendUnpadded, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
) -> Tensor:
    """[B, H, n, d] → [B, H, n, d]: the whole batch if it has no padding, else rows with the same
    padding together, without it; zeros at padding."""
    sequence = call.sequence
    if not _padded(sequence):
        return attend(query, key, value, _with(call, sequence.replace(valid=None)), None)
    assert sequence.valid is not None
    masks, of_row = sequence.valid.unique(dim=0, return_inverse=True)
    outputs = []
    for number, valid in enumerate(masks):
        rows, kept = (of_row == number).nonzero()[:, 0], valid.nonzero()[:, 0]
        output = torch.zeros_like(query[rows])
        if len(kept):
            q, k, v = (x[rows].index_select(2, kept) for x in (query, key, value))
            read = attend(q, k, v, _with(call, _only(sequence, rows, kept)), valid)
            output = output.index_copy(2, kept, read)
        outputs.append(output)
    return torch.cat(outputs)[of_row.argsort(stable=True).argsort()]


def unpadded(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
) -> Iterator[tuple[slice, Tensor | None, list[Tensor], AttentionCall]]:
    """The whole batch if it has no padding, else each row without its padding: the rows, the
    indices [m] of their tokens (None: all), their query, key and value [B, H, m, d], and the
    call."""
    sequence = call.sequence
    if not _padded(sequence):
        call = _with(call, sequence.replace(valid=None))
        yield slice(0, len(query)), None, [query, key, value], call
        return
    assert sequence.valid is not None
    for row, valid in enumerate(sequence.valid):
        kept, rows = valid.nonzero()[:, 0], slice(row, row + 1)
        parts = [x[rows].index_select(2, kept) for x in (query, key, value)]
        yield rows, kept, parts, _with(call, _only(sequence, rows, kept))


def _padded(sequence: SequenceInfo) -> bool:
    return sequence.valid is not None and not bool(sequence.valid.all())


def _with(call: AttentionCall, sequence: SequenceInfo) -> AttentionCall:
    return dataclasses.replace(call, sequence=sequence)


def _positions(sequence: SequenceInfo) -> Tensor:
    """[B, n]"""
    assert sequence.valid is not None
    positions, valid = sequence.positions, sequence.valid
    if positions is None:
        positions = torch.arange(valid.shape[1], device=valid.device)[None]
    return positions.expand(*valid.shape)


def _only(sequence: SequenceInfo, rows: Tensor | slice, kept: Tensor) -> SequenceInfo:
    """Metadata of the kept tokens of some rows."""
    counts = sequence.log_multiplicity
    return SequenceInfo(
        positions=_positions(sequence)[rows][:, kept],
        log_multiplicity=None if counts is None else counts[rows][:, kept],
        causal=sequence.causal,
    )


@dataclass(frozen=True)
class Packed:
    """Rows with their padding at the end: hidden [B, m, D], lengths, positions [B, m]; order
    [B, m] int64: the index of each token in the input, or None where it is unchanged."""

    hidden: Tensor
    lengths: list[int]
    positions: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, hidden: Tensor, sequence: SequenceInfo) -> Packed:
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
    def sequence(self) -> SequenceInfo:
        m = self.hidden.shape[1]
        if min(self.lengths) == m:
            return SequenceInfo(self.positions)
        lengths = torch.tensor(self.lengths, device=self.hidden.device)
        return SequenceInfo(
            self.positions, torch.arange(m, device=lengths.device) < lengths[:, None]
        )

    def with_hidden(self, hidden: Tensor) -> Packed:
        return Packed(hidden, self.lengths, self.positions, self.order)

    def unpacked(self, hidden: Tensor, n: int) -> Tensor:
        """[B, m, D] → [B, n, D] at the tokens' indices in the input; zeros at padding."""
        if self.order is None:
            return hidden
        valid = self.sequence.valid
        if valid is not None:
            hidden = hidden.masked_fill(~valid[..., None], 0)
        index = self.order[..., None].expand_as(hidden)
        return hidden.new_zeros(len(hidden), n, hidden.shape[2]).scatter(1, index, hidden)
