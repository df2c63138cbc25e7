"""SparQ (Ribar et al., arXiv 2312.04985, §4): a new token reads some channels of all keys, and then
the entries that these channels rank highest.

All entries are kept, and the keys also in a second layout, by channel, so that r of the d channels
can be read alone (1.5 times the memory). A query's r largest numbers give approximate scores; the
best entries and the newest ones are read whole, and the weight estimated for the rest is given to
the mean of all values (algorithm 1). Query heads with the same keys choose together, by the sums of
their absolute numbers and of their scores. The prompt is read exactly, and so are several new
tokens at once, such as a question after the prompt (`several`).

Differs from the official code (graphcore-research/llm-inference-research, MIT): the budget includes
the new token (there it is added to the budget).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from methods.base import AttentionCall
from methods.parts.attention import widened
from methods.parts.kv_cache import Storage
from methods.parts.parameters import Budget, Positive, Range
from methods.parts.sparse_reading import LayerEntries, Prompt, SparseReading


@dataclass(frozen=True)
class SparQ(SparseReading):
    """budget  entries that a new token reads whole in each KV head of a layer (k)
    r       channels of all keys that it reads
    local   share of the budget for the newest entries; the new entry is always read
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
    """The entries of one layer, the keys also by channel, [B, G·d, n], and the sum of each row's
    values [B, G, d]."""

    method: SparQ

    def __init__(self, method: SparQ, prompt: Prompt) -> None:
        super().__init__(method, prompt)
        self.by_channel = Storage([prompt.key.mT.flatten(1, 2).contiguous()])
        self.total = widened(prompt.value).masked_fill(self._padding()[..., None], 0).sum(2)

    def held(self) -> list[Tensor]:
        return [*super().held(), *self.by_channel.held(), self.total]

    def take(self, key: Tensor, value: Tensor) -> None:
        super().take(key, value)
        self.by_channel.add(key.mT.flatten(1, 2))
        self.total += widened(value).sum(2)

    def step(self, query: Tensor, call: AttentionCall) -> Tensor:
        grouped = query.view(*self.total.shape[:2], -1, query.shape[3])
        scores, tokens = self._scores(grouped, call.scale), self.tokens()
        most = [max(1, min(pair)) for pair in zip(self.budget, tokens, strict=True)]
        newest = [max(1, round(self.method.local * count)) for count in most]
        older = torch.arange(self.seen, 0, -1, device=query.device) > self.of_rows(newest)
        place = self.best(scores.sum(2).where(older, torch.inf), most)
        read = place < self.seen
        at = place.clamp(max=self.seen - 1)[:, :, None].expand(-1, -1, grouped.shape[2], -1)
        shares = scores.softmax(-1).gather(3, at)
        share = (shares * read[:, :, None]).sum(-1, keepdim=True)
        output = widened(self.attend_at(grouped, place, read, call.scale))
        mean = (self.total / self.of_rows(tokens))[:, :, None]
        self._count(sum(tokens), sum(most))
        return mean.lerp(output, share).to(query.dtype).view_as(query)

    def _padding(self) -> Tensor:
        """[B or 1, 1, n] bool: the padding of each row."""
        token = torch.arange(self.seen, device=self.key.device)[None, None]
        return token < self.of_rows(self.first)

    def _scores(self, query: Tensor, scale: float) -> Tensor:
        """[B, G, g, n]: approximate scores of queries [B, G, g, d], -inf at padding."""
        heads, groups, width = query.shape[1:]
        sizes = widened(query).abs()
        channel = sizes.sum(2).topk(min(self.method.r, width), sorted=False).indices
        part = query.gather(3, channel[:, :, None].expand(-1, -1, groups, -1))
        covered = widened(part).abs().sum(3) / sizes.sum(3).clamp(min=1e-30)
        channels = self.by_channel.parts()[0].unflatten(1, (heads, width))
        scores = widened(self.sums_at(part, channels, channel))
        scores = scores * (scale / covered.clamp(min=1e-30).sqrt())[..., None]
        if any(self.first):
            scores = scores.masked_fill(self._padding()[:, :, None], -torch.inf)
        return scores

    def _count(self, tokens: int, most: int) -> None:
        """Counts the bytes read: r channels of all keys, the entries read whole and the mean
        value."""
        batch, heads, _, width = self.key.shape
        numbers = min(self.method.r, width) * tokens + 2 * width * most + width * batch
        self.read += heads * numbers * self.key.element_size()
