"""TOVA, token omission via attention (Oren et al., arXiv 2401.06104, §3): a multi-state RNN that
drops the state which the newest token attends to least.

After the prompt and after each step, the entries with the largest softmax weights of the last query
are kept. Weights are averaged over all heads of the layer, so each head keeps the same tokens. The
newest token may be dropped at once (kvpress protects it).

Differs from the official code (schwartz-lab-NLP/TOVA, Apache-2.0): as an option, that code narrows
the gaps between the positions of kept tokens, for texts longer than those of training; here
positions are true.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from methods.base import AttentionCall
from methods.parts.attention import attention_received
from methods.parts.eviction import KeptEntries, Rolling


@dataclass(frozen=True)
class TOVA(Rolling):
    """Keeps the entries to which the last query attends most.

    budget  total entries (`Budget`); the paper's multi-state sizes go up to 4,096
    """

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        received = attention_received(query, key, call, 1)
        return received.mean(1, keepdim=True).expand(key.shape[:3])

    def step(
        self, entries: KeptEntries, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        entries.append(key, value)
        output, weights = entries.attend_by(entries.logits(query, call), call)
        mean = weights.mean((1, 2))[:, None]
        entries.displace(mean.expand_as(entries.token), spare=1, call=call)
        return output

    def scaled_down(self) -> Self:
        return replace(self, budget=12)
