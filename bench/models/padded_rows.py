"""Rows of different lengths in the form for a decoder: positions, the start of a question, and
padding on the left.

Shapes: B batch, n tokens.
"""

from __future__ import annotations

from torch import Tensor

from bench.models.hf import counted
from methods.base import SequenceInfo, Unsupported


def causal(ids: Tensor, sequence: SequenceInfo) -> SequenceInfo:
    """The sequence with the positions of tokens after padding."""
    padded = sequence.valid is not None
    return sequence.replace(
        causal=True, positions=counted(sequence, ids) if padded else sequence.positions
    )


def question_start(sequence: SequenceInfo) -> int:
    """The index of the first VIP token of a batch of one row; 0: there is none."""
    if sequence.vip is None:
        return 0
    if len(sequence.vip) != 1:
        raise Unsupported("a question that is read after the cache is made takes one row at a time")
    return int(sequence.vip[0].int().argmax())


def padded_left(ids: Tensor, sequence: SequenceInfo) -> tuple[Tensor, SequenceInfo]:
    """The same rows with padding on the left, so that new tokens follow the last one."""
    valid = sequence.valid
    if valid is None or bool((valid[:, 1:] >= valid[:, :-1]).all()):
        return ids, sequence
    order = valid.long().argsort(dim=1, stable=True)
    moved = {
        name: value.gather(1, order)
        for name in ("positions", "valid", "vip", "log_multiplicity")
        if (value := getattr(sequence, name)) is not None
    }
    return ids.gather(1, order), sequence.replace(**moved)
