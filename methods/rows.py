"""Rows of a batch one by one, without their padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from methods.base import AttentionCall, SequenceInfo

Attend = Callable[[Tensor, Tensor, Tensor, AttentionCall, Tensor | None], Tensor]
"""As `Method.attend`, for rows without padding: the last argument is `valid` [n] of the row before
its padding was taken away, or None where the batch has no padding."""


def without_padding(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
) -> Tensor:
    """[B, H, n, d] → [B, H, n, d]: the whole batch where nothing is padded, else each row as if it
    were alone; zeros at padding."""
    sequence = call.sequence
    if sequence.valid is None or bool(sequence.valid.all()):
        call = dataclasses.replace(call, sequence=sequence.replace(valid=None))
        return attend(query, key, value, call, None)
    outputs = []
    for row, valid in enumerate(sequence.valid):
        kept = valid.nonzero()[:, 0]
        output = torch.zeros_like(query[row : row + 1])
        if len(kept):
            q, k, v = (x[row : row + 1].index_select(2, kept) for x in (query, key, value))
            row_call = dataclasses.replace(call, sequence=_only(sequence, row, kept))
            output = output.index_copy(2, kept, attend(q, k, v, row_call, valid))
        outputs.append(output)
    return torch.cat(outputs)


def _only(sequence: SequenceInfo, row: int, kept: Tensor) -> SequenceInfo:
    """The kept tokens of one row."""
    positions, counts = sequence.positions, sequence.log_multiplicity
    return SequenceInfo(
        positions=kept[None] if positions is None else positions[row % len(positions), kept][None],
        log_multiplicity=None if counts is None else counts[row : row + 1, kept],
        causal=sequence.causal,
    )
