"""SparQ (Ribar et al., arXiv 2312.04985, §4): a new token reads some channels of all keys, and then
the entries that these channels rank highest.

All entries are kept, the keys in a second layout, by channel, so that r of the d channels are read
alone (held: half as much again). A query's r largest numbers give approximate scores; the best
entries and the newest ones are read whole, and the weight estimated for the rest goes to the mean
of all values (algorithm 1). Query heads with the same keys choose together: by the sum of their
numbers' sizes, and of their scores. The prompt is read exactly.

Differs from the official code: the budget includes the new token (there one more).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from methods.base import AttentionCall
from methods.parts.budget import Budget
from methods.parts.kv_cache import Storage
from methods.parts.parameters import Positive, Range
from methods.parts.partial import widened
from methods.parts.sparse_reading import LayerEntries, Prompt, SparseReading, best


@dataclass(frozen=True)
class SparQ(SparseReading):
    """budget  entries that a new token reads whole in each KV head of a layer (k)
    r       channels of all keys that it reads
    local   share of the budget that goes to the newest entries, the new one in any case
    """

    budget: Budget = 128
    r: Positive = 32
    local: Annotated[float, Range(least=0, most=1)] = 0.25

    def layer(self, index: int, prompt: Prompt) -> LayerEntries:
        return ByChannel(self, prompt)

    def exact_limit(self) -> SparQ:
        return replace(self, budget=4096, prefill=None)

    def scaled_down(self) -> SparQ:
        return replace(self, budget=8, r=2)


class ByChannel(LayerEntries):
    """The entries of one layer, the keys by channel too, [B, G·d, n], and the sum of each row's
    values [B, G, d]."""

    def __init__(self, method: SparQ, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.method, self.padded = method, bool((self.first > 0).any())
        self.by_channel = Storage([prompt.key.mT.flatten(1, 2).contiguous()])
        padding = torch.arange(self.seen, device=self.first.device) < self.first[:, None]
        self.total = widened(prompt.value).masked_fill(padding[:, None, :, None], 0).sum(2)

    def held(self) -> list[Tensor]:
        return [*super().held(), *self.by_channel.held(), self.total]

    def step(self, query: Tensor, call: AttentionCall) -> Tensor:
        self.by_channel.add(self.key[:, :, -1:].mT.flatten(1, 2))
        self.total += widened(self.value[:, :, -1])
        grouped = query.unflatten(1, (self.key.shape[1], -1))[:, :, :, 0]
        scores = self._scores(grouped, call.scale)
        most = self.budget.clamp(min=1).minimum(self.seen - self.first)
        newest = (self.method.local * most).round().clamp(min=1)
        token = torch.arange(self.seen, device=query.device)
        local = token >= (self.seen - newest)[:, None]
        worth = scores.sum(2).masked_fill(local[:, None], torch.inf)
        place, read = best(worth, most)
        shares = scores.softmax(-1).gather(3, place[:, :, None].expand(-1, -1, scores.shape[2], -1))
        share = (shares * read[:, :, None]).sum(-1, keepdim=True)
        output = widened(self.attend_at(grouped, place, read, call.scale))
        mean = self.total / (self.seen - self.first)[:, None, None]
        self._count(most)
        return (share * output + (1 - share) * mean[:, :, None]).to(query.dtype).view_as(query)

    def _scores(self, query: Tensor, scale: float) -> Tensor:
        """[B, G, g, n]: approximate scores of queries [B, G, g, d], -inf at padding."""
        batch, heads, groups, width = query.shape
        sizes = query.abs()
        channel = sizes.sum(2).topk(min(self.method.r, width)).indices
        several = channel[:, :, None].expand(-1, -1, groups, -1)
        part, size = query.gather(3, several), widened(sizes)
        covered = size.gather(3, several).sum(3) / size.sum(3).clamp(min=1e-30)
        rows = self.by_channel.parts()[0].unflatten(1, (heads, width)).flatten(0, 1)
        pairs = zip(rows, channel.flatten(0, 1), part.flatten(0, 1), strict=True)
        # Head by head, the channels that are copied stay in a cache.
        scores = torch.stack([some @ row.index_select(0, one) for row, one, some in pairs])
        scores = widened(scores).view(batch, heads, groups, -1)
        scores = scores * (scale / covered.clamp(min=1e-30).sqrt())[..., None]
        if self.padded:
            padding = torch.arange(self.seen, device=query.device) < self.first[:, None]
            scores = scores.masked_fill(padding[:, None, None], -torch.inf)
        return scores

    def _count(self, most: Tensor) -> None:
        """Counts r channels of all keys, the entries read whole and the mean value."""
        heads, width = self.key.shape[1], self.key.shape[3]
        r, tokens = min(self.method.r, width), int((self.seen - self.first).sum())
        numbers = r * tokens + 2 * width * int(most.sum()) + width * len(most)
        self.read += heads * numbers * self.key.element_size()
