"""Eviction by the attention of the prompt's last queries: the scores of SnapKV and PyramidKV."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from methods.base import AttentionCall, Workload
from methods.parts.attention import attention_received, per_key_head
from methods.parts.eviction import Evicting, Rows
from methods.parts.parameters import Positive, Range

KernelSize = Annotated[int, Range(least=1, step=2)]


@dataclass(frozen=True)
class ObservationWindow(Evicting):
    """An entry's score is the softmax weight that it receives from the last queries, summed over
    them, averaged over the query heads of a KV head, and pooled along the tokens (zeros outside).
    The window itself is kept.

    window   last queries of the prompt, whose weights are the scores
    kernel_size  tokens over which a score is pooled
    pooling  "max" | "avg"
    """

    window: Positive = 32
    kernel_size: KernelSize = 7
    pooling: Literal["max", "avg"] = "max"

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        received = per_key_head(attention_received(query, key, call, self.window), key)
        received[:, :, -self.window :] = 0
        pool = max_pool1d if self.pooling == "max" else avg_pool1d
        return pool(received, self.kernel_size, 1, self.kernel_size // 2)

    def protected(self, token: Tensor, rows: Rows) -> Tensor:
        return token >= rows.seen - self.window

    def least(self) -> int:
        return self.window + 1

    def unsupported(self, workload: Workload) -> str | None:
        if self.window > workload.length:
            return f"window={self.window:,} is longer than the input of {workload.length:,} tokens"
        return super().unsupported(workload)

    def scaled_down(self) -> Self:
        return replace(self, budget=12, window=4)
