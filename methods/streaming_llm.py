"""StreamingLLM (Xiao et al., arXiv 2309.17453, §3.2): the first tokens, which are attention sinks,
and a window of the last tokens.

While a model decodes, each new token attends to the first `sinks` entries and, with the rest of the
budget, to the last ones, including itself. The prompt is read exactly; the paper's streams never
read more than the window.

Differs from the official code (mit-han-lab/streaming-llm, MIT):
- It caches unrotated keys and rotates all of them at each step to their index in the cache. Here
  keys come rotated, and the query is moved back to its index in the cache for its scores with the
  sinks; in the window its true position gives the same distances. positions="true" doesn't
  renumber.
- It evicts before it reads several tokens at once, so that the first of them see a shorter window
  than the budget allows; here each sees the whole window.
- Its class keeps 4 + 512 entries, its example 4 + 2,000, and the paper's Table 1 has 4 + 1,020; the
  default here is a quarter of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, Workload
from methods.parts.eviction import KeptEntries, Rolling, Rows
from methods.parts.parameters import NonNegative

NO_ROTATION = (
    'positions="cache" turns queries by the model\'s rotary embedding, and this model has none; '
    'positions="true" leaves them as they are'
)


@dataclass(frozen=True)
class StreamingLLM(Rolling):
    """Keeps the first and the last tokens.

    budget     total entries: sinks and window (`Budget`)
    sinks      first tokens, which are always kept
    positions  "cache": as in the paper, tokens count from 0 within the cache; "true": as in the
               text
    """

    # A model's own window would hide the sinks.
    honours: ClassVar[frozenset[Feature]] = frozenset({Feature.SOFTCAP, Feature.SINKS})
    sinks: NonNegative = 4
    positions: Literal["cache", "true"] = "cache"

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        newest = torch.arange(key.shape[2], device=key.device, dtype=torch.float32)
        return newest.expand(key.shape[:3])

    def protected(self, token: Tensor, rows: Rows) -> Tensor:
        return token < rows.first + self.sinks

    def least(self) -> int:
        return self.sinks + 1

    def unsupported(self, workload: Workload) -> str | None:
        if self.positions == "cache" and workload.causal and not workload.rotatable:
            return NO_ROTATION
        return super().unsupported(workload)

    def step(
        self, entries: KeptEntries, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        worth = self.worth(entries.token.float(), entries.token, entries.rows)
        entries.displace(worth, spare=0, call=call)
        entries.append(key, value)
        if self.positions == "true" or not self.sinks:
            return entries.attend(query, call)
        assert call.rotate is not None
        moved = call.rotate(query, -entries.dropped())
        scores = entries.logits(query, call)
        if entries.padded:
            sinks = self.protected(entries.token[:, :1], entries.rows)[:, :, None]
            scores = torch.where(sinks, entries.logits(moved, call), scores)
        else:  # the sinks are still at the front
            scores[..., : self.sinks] = entries.logits(moved, call, self.sinks)
        return entries.attend_by(scores, call)[0]

    def scaled_down(self) -> Self:
        return replace(self, budget=12, sinks=2)
