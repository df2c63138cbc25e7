"""KNorm (Devoto et al., arXiv 2406.11430, "A Simple and Effective L2 Norm-Based Strategy for KV
Cache Compression", §3): the entries with the shortest keys, which tend to get the most attention.

Attention weights are not needed. All tokens after the prompt are kept.

Differs from the official code (alessiodevoto/l2compress, no licence found): that code rounds the
share up and keeps prompts below `prune_after` tokens whole; its runs also keep the first two layers
whole, which is skip_layers="0-1" here, in addition to the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from torch import Tensor

from methods.base import AttentionCall, Workload
from methods.parts.eviction import Evicting
from methods.parts.parameters import Budget, LayerRanges, in_layer_ranges


@dataclass(frozen=True)
class KNorm(Evicting):
    """Keeps the shortest keys.

    budget       entries of the prompt (`Budget`)
    skip_layers  layers that keep the whole prompt: none, one, or a range such as "0-1"
    """

    budget: Budget = 0.5
    skip_layers: Literal["none"] | LayerRanges = "none"

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        norms: Tensor = key.float().norm(dim=-1)
        return -norms

    def capacity(self, workload: Workload, n: int, layer: int) -> int:
        if self.skip_layers != "none" and in_layer_ranges(self.skip_layers, layer):
            return n
        return super().capacity(workload, n, layer)

    def scaled_down(self) -> Self:
        return replace(self, budget=12)
