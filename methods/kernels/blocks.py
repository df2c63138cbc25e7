"""The pattern of block-sparse attention as an argument of the native kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64  # keys, and queries, in a block


@dataclass(frozen=True)
class Blocks:
    """Which blocks of 64 keys each block of 64 queries attends to.

    starts   [H or 1, blocks of queries + 1] int32; list i of head h is keys[starts[h, i] :
             starts[h, i+1]]
    keys     int32: the numbers of key blocks, in any order; a repeated one counts twice
    visible  [keys, 64] int64, or None: bit j of row i is 1 if the block's query i reads key j of
             this key block; each query must read at least one key
    """

    starts: Tensor
    keys: Tensor
    visible: Tensor | None = None

    @classmethod
    def of(cls, lists: Sequence[Sequence[Sequence[int]]], size: int = BLOCK) -> Blocks:
        """lists[head][query block] = key blocks, for one head (all alike) or all of them; blocks
        of `size` tokens, a multiple of 64. A loop in Python: call it once for each pattern."""
        if size % BLOCK:
            raise ValueError(f"size is {size}; it must be a multiple of {BLOCK}")
        parts, starts = size // BLOCK, []
        keys: list[int] = []
        for head in lists:
            row = []
            for key_blocks in head:
                fine = [block * parts + part for block in key_blocks for part in range(parts)]
                for _ in range(parts):
                    row.append(len(keys))
                    keys += fine
            starts.append([*row, len(keys)])
        return cls(torch.tensor(starts, dtype=torch.int32), torch.tensor(keys, dtype=torch.int32))
