"""Columns and diagonals of a causal attention matrix, in tiles of 64 queries and 64 keys.

A diagonal is the offset of a key: query's place minus the key's. Shapes: H query heads, n tokens,
Q = ⌈n / 64⌉ blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels import BLOCK
from methods.parts.block_sparse import BlockChoice, past, words_of


def lines(columns: Tensor, offsets: Tensor) -> BlockChoice:
    """The tiles through which a column or a diagonal goes, read along these alone: `columns` and
    `offsets` [H, n] bool, offset 0 among them."""
    words, diagonal = column_words(columns), diagonal_words(offsets)
    chosen = tiles_of(diagonal) | (words != 0)[:, None]
    chosen &= past(chosen.shape[1], chosen.device)
    return BlockChoice(chosen, visible=visible_words(chosen, words, diagonal))


def column_words(columns: Tensor) -> Tensor:
    """[H, Q] int64: the columns of each block of keys."""
    return words_of(pad(columns, (0, -columns.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK)))


def diagonal_words(offsets: Tensor, whole: bool = False) -> Tensor:
    """[H, Q, 64] int64: at [D, i] what query i of a block reads along the diagonals, of the block
    of keys that is D blocks before its own. `whole`: a diagonal is widened, for each block of
    queries, to the 64 consecutive keys that hold it."""
    size = -(-offsets.shape[1] // BLOCK) * BLOCK
    # In reverse, the offsets of the keys of a block are consecutive: bit x is offset size - x.
    reverse = pad(offsets, (0, size + 1 - offsets.shape[1])).flip(1)
    reverse = pad(reverse, (0, BLOCK - 1))
    if whole:
        reverse = _windows(pad(reverse, (BLOCK - 1, 0))) != 0
    words: Tensor = _windows(reverse)[:, 1:].flip(1).unflatten(1, (-1, BLOCK))
    if whole:
        words = words[..., :1].repeat(1, 1, BLOCK)
        words[:, 0] &= _up_to_own(words.device)
    return words


def tiles_of(diagonal: Tensor) -> Tensor:
    """[H, Q, Q] bool: the tiles on diagonals [H, Q, 64] of `diagonal_words`."""
    block = torch.arange(diagonal.shape[1], device=diagonal.device)
    before = block[:, None] - block
    return (diagonal != 0).any(-1)[:, before.clamp(min=0)] & (before >= 0)


def visible_words(chosen: Tensor, columns: Tensor, diagonal: Tensor) -> Tensor:
    """`BlockChoice.visible` of the columns and diagonals in chosen tiles [H, Q, Q]."""
    head, query, key = chosen.nonzero().T
    count, own = chosen.shape[1], _up_to_own(chosen.device)
    words = columns[head, key][:, None] & own.where((query == key)[:, None], -1)
    return words | diagonal.flatten(0, 1).index_select(0, head * count + query - key)


def _windows(bits: Tensor) -> Tensor:
    """[H, n + 63] bool → [H, n] int64: bit j of word x is bit x + j."""
    words = bits.long()
    for shift in (1, 2, 4, 8, 16, 32):
        words = words[:, :-shift] | words[:, shift:] << shift
    return words


def _up_to_own(device: torch.device) -> Tensor:
    """[64] int64: the keys of a query's own block up to its own."""
    return ~(-2 << torch.arange(BLOCK, device=device))
