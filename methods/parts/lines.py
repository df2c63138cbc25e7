"""Columns and diagonals of a causal attention matrix, in tiles of 64 queries and 64 keys.

A diagonal is the offset of a key: the query's index minus the key's. Shapes: H query heads, n
tokens, Q = ⌈n / 64⌉ blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels import BLOCK
from methods.parts.sparse_prefill import BlockChoice, past, words_of


def lines(columns: Tensor, offsets: Tensor) -> BlockChoice:
    """The tiles that contain a column or a diagonal, of which only these are read: `columns` and
    `offsets` [H, n] bool, including offset 0."""
    words, diagonal = column_words(columns), diagonal_words(offsets)
    chosen = tiles_of(diagonal) | (words != 0)[:, None]
    chosen &= past(chosen.shape[1], chosen.device)
    return BlockChoice(chosen, visible=visible_words(chosen, words, in_tiles(diagonal, chosen)))


def column_words(columns: Tensor) -> Tensor:
    """[H, Q] int64: the columns of each block of keys."""
    return words_of(pad(columns, (0, -columns.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK)))


def diagonal_words(offsets: Tensor) -> Tensor:
    """[H, Q, 64] int64: at [D, i] the keys that query i of a block reads along the diagonals, in
    the block of keys D blocks before its own."""
    size = -(-offsets.shape[1] // BLOCK) * BLOCK
    # In reverse, the offsets of the keys of a block are consecutive: bit x is offset size - x.
    reverse = pad(offsets, (0, size + 1 - offsets.shape[1])).flip(1)
    words: Tensor = _windows(pad(reverse, (0, BLOCK - 1)))[:, 1:].flip(1).unflatten(1, (-1, BLOCK))
    return words


def run_words(offsets: Tensor) -> Tensor:
    """[H, Q, Q] int64: the keys that all queries of a block read, in runs of 64 consecutive ones. A
    run holds a block's keys on one diagonal. After the farthest diagonal, the next run is for the
    next diagonal outside the last run; if the two would touch, it begins where the last one
    ends."""
    blocks = -(-offsets.shape[1] // BLOCK)
    block, place = (torch.arange(x, device=offsets.device) for x in (blocks, blocks * BLOCK))
    there = pad(offsets, (0, len(place) - offsets.shape[1]))
    # The farthest diagonal before each offset, 0 to 64 Q; -1: none.
    before = pad(place.where(there, -1).cummax(1).values, (1, 0), value=-1)
    words = before.new_zeros(len(offsets), blocks, blocks + 2)
    # Runs by their offset. -64 is past the block's own keys: the block is done.
    run = before[:, BLOCK::BLOCK].minimum(block * BLOCK)
    while bool((run > -BLOCK).any()):
        bits = -1 << -run % BLOCK
        tile = block + -run // BLOCK
        words.scatter_add_(2, tile[..., None], bits[..., None])
        words.scatter_add_(2, tile[..., None] + 1, ~bits[..., None])
        nearer = before.gather(1, run.clamp(min=0))
        run = nearer.minimum(run - BLOCK).masked_fill(nearer < 0, -BLOCK)
    return words[..., :blocks].masked_fill(~past(blocks, words.device), 0)


def tiles_of(diagonal: Tensor) -> Tensor:
    """[H, Q, Q] bool: the tiles on diagonals [H, Q, 64] of `diagonal_words`."""
    block = torch.arange(diagonal.shape[1], device=diagonal.device)
    before = block[:, None] - block
    return (diagonal != 0).any(-1)[:, before.clamp(min=0)] & (before >= 0)


def in_tiles(diagonal: Tensor, chosen: Tensor) -> Tensor:
    """[chosen tiles, 64] int64: the words of `diagonal_words` in chosen tiles [H, Q, Q]."""
    head, query, key = chosen.nonzero().T
    return diagonal.flatten(0, 1).index_select(0, head * chosen.shape[1] + query - key)


def visible_words(chosen: Tensor, columns: Tensor, others: Tensor) -> Tensor:
    """`BlockChoice.visible` of columns [H, Q], and of the other keys [chosen tiles, 64 or 1] that
    queries read, in chosen tiles [H, Q, Q]."""
    head, query, key = chosen.nonzero().T
    own = _up_to_own(chosen.device).where((query == key)[:, None], -1)
    return (columns[head, key][:, None] | others) & own


def _windows(bits: Tensor) -> Tensor:
    """[H, n + 63] bool → [H, n] int64: bit j of word x is bit x + j."""
    words = bits.long()
    for shift in (1, 2, 4, 8, 16, 32):
        words = words[:, :-shift] | words[:, shift:] << shift
    return words


def _up_to_own(device: torch.device) -> Tensor:
    """[64] int64: the keys of a query's own block up to its own."""
    return ~(-2 << torch.arange(BLOCK, device=device))
