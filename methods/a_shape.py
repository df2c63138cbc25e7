"""A-shape: the first tokens and a local window (MInference, Jiang et al., arXiv 2407.02490, §3).

The attention of streaming decoders, read while the prompt is processed: the first columns of the
attention matrix and its last diagonals. O(n · (global_tokens + local_window)). The defaults are the
paper's (§4, implementation details).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from methods.parts.block_sparse import BlockChoice
from methods.parts.lines import lines
from methods.parts.parameters import NonNegative, Positive
from methods.parts.sparse_prefill import Read, SparsePrefill


@dataclass(frozen=True)
class AShape(SparsePrefill):
    """global_tokens  first tokens, which every query reads
    local_window   tokens up to its own that a query reads
    """

    chooses_ahead: ClassVar[bool] = False
    global_tokens: NonNegative = 1024
    local_window: Positive = 4096

    def exact_limit(self) -> AShape:
        return replace(self, local_window=2048)

    def scaled_down(self) -> AShape:
        return replace(self, global_tokens=2, local_window=6)

    def reads_all(self, n: int) -> bool:
        return n <= self.global_tokens + self.local_window

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        shape = _shape(len(key), self.global_tokens, self.local_window, key.device)
        return key[None], value[None], shape


@lru_cache(maxsize=1)
def _shape(n: int, global_tokens: int, local_window: int, device: torch.device) -> BlockChoice:
    """The same for all heads and layers."""
    token = torch.arange(n, device=device)[None]
    return lines(token < global_tokens, token < local_window)
