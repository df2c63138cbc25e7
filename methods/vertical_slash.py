"""Vertical-slash attention (MInference, Jiang et al., arXiv 2407.02490, §3 and algorithm 2).

The weights of the last queries on all keys are summed by column and by diagonal; all queries of the
head read the columns and diagonals with the largest sums. The end of the prompt decides for each
head, so later tokens may change which keys a query reads; it never reads later keys.

MInference finds a pattern and its size offline, for each head of a model. This is its dynamic part,
with one size for all heads. For heads without a found pattern, its code takes 1,000 columns and
6,096 diagonals, which are meant for prompts of 128,000 tokens; the defaults are shares of the
prompt, so that shorter prompts are read sparsely, too. As in that code (microsoft/MInference, MIT),
but not in the algorithm, the first columns and the nearest diagonals, including a query's own
token, are always chosen. So at least `near_diagonals`, 100, are read (there at least 50, any of the
nearest 100).

Diagonals are read in whole runs of 64 keys, as in the official kernel, which reads much more than
the diagonals: for 1,000 random tokens, 100 columns and 200 diagonals are 39 % of all pairs, and
their runs are all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels import BLOCK
from methods.parts.lines import (
    column_words,
    diagonal_words,
    in_tiles,
    run_words,
    tiles_of,
    visible_words,
)
from methods.parts.parameters import NonNegative, Positive, TokenCount, tokens_of
from methods.parts.sparse_prefill import (
    BlockChoice,
    Read,
    SparsePrefill,
    last_weights,
    offset_sums,
    words_of,
)


@dataclass(frozen=True)
class VerticalSlash(SparsePrefill):
    """vertical        columns that a head reads: a share of the prompt's tokens, or a number
    slash           diagonals that a head reads: a share or a number
    last_queries    queries at the end of the prompt whose weights decide
    first_columns   columns at the start that are always chosen; 0: none, as in the algorithm
    near_diagonals  nearest diagonals that are always chosen
    granularity     "block": a block of 64 queries reads runs of 64 consecutive keys that hold its
                    diagonals, placed as in the official kernel. "token": only the diagonals are
                    read
    """

    vertical: TokenCount = 0.1
    slash: TokenCount = 0.25
    last_queries: Positive = 64
    first_columns: NonNegative = 30
    near_diagonals: NonNegative = 100
    granularity: Literal["block", "token"] = "block"

    def exact_limit(self) -> VerticalSlash:
        return replace(self, slash=2048)

    def scaled_down(self) -> VerticalSlash:
        few = replace(self, vertical=3, slash=5, last_queries=8, first_columns=1, near_diagonals=2)
        return replace(few, granularity="token")

    def is_dense(self, n: int) -> bool:
        least = BLOCK if self.granularity == "block" else 0
        return n <= max(*self._counts(n), self.first_columns, self.near_diagonals, least)

    def choose(self, query: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The columns [g, v] and the diagonals [g, s], in rising order."""
        weights = last_weights(query, key, scale, self.last_queries)
        vertical, slash = self._counts(len(key))
        columns = _largest(weights.sum(1), vertical, self.first_columns)
        return columns, _largest(offset_sums(weights), slash, self.near_diagonals)

    def _counts(self, n: int) -> tuple[int, int]:
        """The numbers of columns and of diagonals for n tokens."""
        return max(1, tokens_of(self.vertical, n)), max(1, tokens_of(self.slash, n))

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        """Diagonals are read in tiles of the unchanged keys. Columns outside these tiles are
        gathered after the keys, so that a few columns don't cost whole tiles."""
        columns, diagonals = self.choose(query, key, scale)
        here = torch.zeros(len(query), len(key), dtype=torch.bool, device=key.device)
        own = torch.zeros_like(diagonals[:, :1])
        offsets = here.scatter(1, torch.cat((own, diagonals), 1), True)
        if self.granularity == "block":
            runs = run_words(offsets)
            chosen = runs != 0
            along = runs[chosen][:, None]
        else:
            diagonal = diagonal_words(offsets)
            chosen = tiles_of(diagonal)
            along = in_tiles(diagonal, chosen)
        visible = visible_words(chosen, column_words(here.scatter(1, columns, True)), along)
        apart = _words_apart(columns, chosen)
        choice = torch.cat((chosen, apart != 0), 2)
        behind = choice.nonzero()[:, 2] >= chosen.shape[2]
        words = torch.empty(len(behind), BLOCK, dtype=torch.long, device=key.device)
        words[~behind] = visible
        words[behind] = apart[apart != 0][:, None]
        keys, values = (_extended(x, columns) for x in (key, value))
        return keys, values, BlockChoice(choice, visible=words)


def _words_apart(columns: Tensor, chosen: Tensor) -> Tensor:
    """[g, Q, C] int64: which of the columns [g, v], in blocks of 64, a block of queries reads in
    addition to its `chosen` tiles [g, Q, Q]."""
    blocks = chosen.shape[2]
    block = pad(columns // BLOCK, (0, -columns.shape[1] % BLOCK), value=blocks)
    listed = chosen.gather(2, block.clamp(max=blocks - 1)[:, None].expand(-1, blocks, -1))
    before = block[:, None] < torch.arange(blocks, device=chosen.device)[:, None]
    return words_of((before & ~listed).unflatten(2, (-1, BLOCK)))


def _extended(x: Tensor, columns: Tensor) -> Tensor:
    """[n, d] → [g, m, d]: its tokens padded to whole blocks, followed by those in columns [g,
    v]."""
    tokens = pad(x, (0, 0, 0, -len(x) % BLOCK)).expand(len(columns), -1, -1)
    return torch.cat((tokens, x[pad(columns, (0, -columns.shape[1] % BLOCK))]), 1)


def _largest(sums: Tensor, count: int, first: int) -> Tensor:
    """[g, count] indices of the largest sums [g, n], in rising order, always including the `first`
    ones."""
    sums[:, :first] = torch.inf
    count = min(sums.shape[1], max(count, first))
    return sums.topk(count).indices.sort().values
