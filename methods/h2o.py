"""H2O, heavy-hitter oracle (Zhang et al., arXiv 2306.14048, §4, Algorithm 1): the entries that have
received the most attention, and the last ones.

Each entry accumulates the softmax weight that it receives from all queries since its token, those
of the prompt included; this takes a second pass over the prompt's weights, in blocks. After each
step, each KV head drops the entry with the smallest sum outside the recent window.

Differs from the official code (FMInference/H2O, no licence found):
- Its simulation (utils_lm_eval) masks entries without freeing them and sums over future queries
  too. This follows its version that drops entries (utils_real_drop), which keeps true positions, as
  here, unless tokens are streamed.
- It sums over the rows of a batch too. Here they are independent.
- It has no grouped-query attention; here the query heads of a KV head are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from torch import Tensor

from methods.base import AttentionCall
from methods.parts.attention import attention_received, per_key_head
from methods.parts.eviction import KeptEntries, Rolling, Rows
from methods.parts.parameters import Budget, Range


@dataclass(frozen=True)
class H2O(Rolling):
    """Keeps heavy hitters and recent tokens.

    budget  total entries (`Budget`); the paper's is 20 % of the prompt
    recent  share of the budget that goes to the last tokens; the rest are heavy hitters
    """

    keeps_scores: ClassVar[bool] = True
    budget: Budget = 0.2
    recent: Annotated[float, Range(least=0, most=1)] = 0.5

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return per_key_head(attention_received(query, key, call, query.shape[2]), key)

    def protected(self, token: Tensor, rows: Rows) -> Tensor:
        return token >= rows.seen - (self.recent * rows.most).round()

    def least(self) -> int:
        return 2

    def step(
        self, entries: KeptEntries, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        entries.append(key, value)
        output, weights = entries.attend_by(entries.logits(query, call), call)
        entries.score.add_(per_key_head(weights, entries.key)[:, :, 0])
        entries.read += entries.score.nbytes
        entries.displace(self.worth(entries.score, entries.token, entries.rows), spare=1, call=call)
        return output

    def scaled_down(self) -> Self:
        return replace(self, budget=12)
