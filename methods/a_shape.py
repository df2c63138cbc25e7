"""A-shape: the first tokens and a local window (MInference, Jiang et al., arXiv 2407.02490, §3).

The prompt is read with the attention of streaming decoders: the first columns of the attention
matrix and its last diagonals. O(n · (global_tokens + local_window)). The paper's numbers (§4,
implementation details) are 1,024 and 4,096, for prompts of 128,000 tokens; the defaults are shares
of the prompt in the same proportion, so that shorter prompts are read sparsely, too. The official
code is microsoft/MInference (MIT).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from methods.parts.lines import lines
from methods.parts.parameters import TokenCount, tokens_of
from methods.parts.sparse_prefill import BlockChoice, Read, SparsePrefill


@dataclass(frozen=True)
class AShape(SparsePrefill):
    """global_tokens  first tokens, which every query reads: a share of the prompt, or a number
    local_window   last tokens, up to its own, that a query reads: a share or a number, at least 1
    """

    chooses_ahead: ClassVar[bool] = False
    global_tokens: TokenCount = 0.05
    local_window: TokenCount = 0.2

    def exact_limit(self) -> AShape:
        return replace(self, local_window=2048)

    def scaled_down(self) -> AShape:
        return replace(self, global_tokens=2, local_window=6)

    def is_dense(self, n: int) -> bool:
        return n <= sum(self._counts(n))

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        shape = _shape(len(key), *self._counts(len(key)), key.device)
        return key[None], value[None], shape

    def _counts(self, n: int) -> tuple[int, int]:
        """The numbers of global tokens and of tokens in the window, for n tokens."""
        return tokens_of(self.global_tokens, n), max(1, tokens_of(self.local_window, n))


@lru_cache(maxsize=1)
def _shape(n: int, global_tokens: int, local_window: int, device: torch.device) -> BlockChoice:
    """The blocks that are read, which are the same in all heads and layers."""
    token = torch.arange(n, device=device)[None]
    return lines(token < global_tokens, token < local_window)
