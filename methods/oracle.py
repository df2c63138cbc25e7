"""Oracles of decoding: each new token reads the entries with the largest exact weights.

For each query of each head, the softmax weights of all keys are computed exactly. Top-k reads the k
largest, top-p the fewest that hold the share p of the weight; the weights of the entries that are
read are normalised to 1. No choice of k entries holds more of the weight, so top-k is the upper
bound for methods that read or keep k entries and add nothing for the others (SparQ adds their
estimated mean). An oracle isn't for use: it holds and reads all keys and values. The prompt is read
exactly.

There is no paper. The research hub of SkyLight (skylight-org/sparse-attention-hub, Apache-2.0) has
both as reference rows.

Differs from that code: a share is of the prompt's tokens (there of all tokens so far). Top-p stops
at the weight that reaches p (there one weight later). The hub adds sinks and windows to an oracle;
here it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, Workload
from methods.parts.attention import attend_masked, capped, logits, softmax
from methods.parts.kv_cache import CacheMethod, Entries, EntriesCache
from methods.parts.parameters import Budget, Range, entries, shortage
from methods.parts.sparse_prefill import fewest_covering

Choice = Callable[[Tensor], Tensor]
"""Weights [B, H, t, E] → which entries each query reads, bool of this shape."""
ROWS = 16
"""Queries whose weights are sorted at a time."""


@dataclass(frozen=True)
class Oracle(CacheMethod):
    """Exact weights choose the entries that a new token reads."""

    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def choice(self, workload: Workload, lengths: Sequence[int]) -> Choice:
        """The choice among the entries of rows whose prompts have these lengths."""
        raise NotImplementedError

    def kv_cache(self, workload: Workload) -> EntriesCache:
        return EntriesCache(self, workload)

    def entries(
        self, key: Tensor, value: Tensor, call: AttentionCall, workload: Workload
    ) -> Entries:
        valid = call.sequence.valid
        lengths = [key.shape[2]] * len(key) if valid is None else valid.sum(1).tolist()
        return ChosenEntries(key, value, self.choice(workload, lengths))


@dataclass(frozen=True)
class OracleTopK(Oracle):
    """budget  entries that a query reads in each head (`Budget`; a share is of the prompt):
    the k of top-k
    """

    budget: Budget = 0.25

    def choice(self, workload: Workload, lengths: Sequence[int]) -> Choice:
        return partial(largest, [entries(self.budget, workload, n) for n in lengths])

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return entries(self.budget, workload, workload.length) >= workload.length

    def unsupported(self, workload: Workload) -> str | None:
        return super().unsupported(workload) or shortage(self.budget, workload, 1)

    def exact_limit(self) -> OracleTopK:
        return replace(self, budget=4096, prefill=None)

    def scaled_down(self) -> OracleTopK:
        return replace(self, budget=4)


@dataclass(frozen=True)
class OracleTopP(Oracle):
    """p  share of the weight that a query reads in each head; 1: all of it"""

    p: Annotated[float, Range(above=0, most=1)] = 0.95

    def choice(self, workload: Workload, lengths: Sequence[int]) -> Choice:
        return partial(fewest_covering, share=self.p)

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return self.p == 1

    def exact_limit(self) -> OracleTopP:
        return replace(self, p=1, prefill=None)

    def scaled_down(self) -> OracleTopP:
        return replace(self, p=0.5)


class ChosenEntries(Entries):
    """All keys and values of one layer; each query reads the entries that `choice` selects."""

    def __init__(self, key: Tensor, value: Tensor, choice: Choice) -> None:
        super().__init__(key, value)
        self.choice = choice

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        visible = self._visible(query, call)
        if visible is None:
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
        parts = zip(query.split(ROWS, 2), visible.split(ROWS, 2), strict=True)
        return torch.cat([self._attend(some, seen, call) for some, seen in parts], 2)

    def _attend(self, query: Tensor, visible: Tensor, call: AttentionCall) -> Tensor:
        scores = capped(logits(query, self.key, call.scale), call)
        weights = softmax(scores.masked_fill_(~visible, -torch.inf), call)
        read = self.choice(weights) & visible
        return attend_masked(query, self.key, self.value, read, call)


def largest(counts: Sequence[int], weights: Tensor) -> Tensor:
    """[B, H, t, E] bool mask of each query's largest weights, `counts` of them in each row."""
    most = max(1, min(max(counts), weights.shape[3]))
    index = weights.topk(most).indices
    rank = torch.arange(most, device=weights.device)
    kept = rank < torch.tensor(counts, device=weights.device)[:, None, None, None]
    return torch.zeros_like(weights, dtype=torch.bool).scatter(3, index, kept.expand_as(index))
