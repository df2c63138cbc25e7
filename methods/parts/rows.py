"""Batches with padding, for methods that cut each row into blocks or stretches of its valid
tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from methods.base import AttentionCall, SequenceInfo

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
