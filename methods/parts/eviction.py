"""Eviction: a decoder's cache that keeps a part of the keys and values, and frees the rest.

The prompt is read exactly; then each KV head of each layer keeps the entries with the highest
`scores` of the method, within its budget. Either all new tokens are kept too (`Evicting`), or each
new token displaces an entry (`Rolling`). Kept entries keep their positions.

A row of a padded batch is scored and counted as if it were alone, and its padding is never kept.
Shapes: B batch, G key heads, H query heads, n tokens, E entries, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Self

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, Workload
from methods.parts.cache_method import CacheMethod, once
from methods.parts.kept_entries import KeptEntries, Rows
from methods.parts.parameters import Budget, entries, shortage
from methods.parts.sequence import unpadded


@dataclass(frozen=True)
class Evicting(CacheMethod):
    """Keeps the best entries of the prompt, and all new tokens: the budget is for the prompt, and a
    question after the compressed prompt is kept whole in addition.

    budget        entries of the prompt that each KV head of a layer keeps (`Budget`); a
                  row too short for the share still keeps `least()`
    keeps_scores  whether `scores` stay with the entries, as `KeptEntries.score`
    """

    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)
    keeps_scores: ClassVar[bool] = False
    budget: Budget = 0.25

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Scores of the prompt's entries, which don't depend on the budget: query [B, H, n, d], key
        and value [B, G, n, d], without padding → [B, G, n]."""
        raise NotImplementedError

    def protected(self, token: Tensor, rows: Rows) -> Tensor | None:
        """Which entries are always kept, by the number of their token: [B, G, E] → bool of this
        shape. None: no entries are."""
        return None

    def least(self) -> int:
        """The fewest entries with which the method works."""
        return 1

    def capacity(self, workload: Workload, n: int, layer: int) -> int:
        """How many entries of a row of n tokens each KV head of a layer may keep."""
        return max(self.least(), entries(self.budget, workload, n))

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return self.capacity(workload, workload.length, layer) >= workload.length

    def kv_cache(self, workload: Workload) -> EvictingCache:
        return EvictingCache(self, workload)

    def unsupported(self, workload: Workload) -> str | None:
        reason = super().unsupported(workload)
        return reason or shortage(self.budget, workload, self.least())

    def exact_limit(self) -> Self:
        return replace(self, budget=4096, prefill=None)

    def worth(self, scores: Tensor, token: Tensor, rows: Rows) -> Tensor:
        """Scores [B, G, E] with inf at the protected ones."""
        protected = self.protected(token, rows)
        return scores if protected is None else scores.masked_fill(protected, inf)


@dataclass(frozen=True)
class Rolling(Evicting):
    """Each new token displaces an entry once the budget is full. Several new tokens at once, such
    as a question after the compressed prompt, are taken one by one: the budget holds for them too.
    """

    def step(
        self, entries: KeptEntries, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        """Adds the entry of one new token, key and value [B, G, 1, d], and reads with its query
        [B, H, 1, d] → [B, H, 1, d]. Chooses the entry to drop (`KeptEntries.displace`), before or
        after the reading."""
        raise NotImplementedError

    def kv_cache(self, workload: Workload) -> RollingCache:
        return RollingCache(self, workload)


class EvictingCache:
    """The cache of an `Evicting` method.

    at_once  several new tokens at once are read as if each came alone
    scorer   the method with one fixed budget: the key under which caches share its scores
    """

    at_once: ClassVar[bool] = True

    def __init__(self, method: Evicting, workload: Workload) -> None:
        self.method, self.workload = method, workload
        self.scorer = replace(method, budget=1.0, prefill=None)
        self.layers: dict[int, KeptEntries] = {}

    @property
    def read_bytes(self) -> int:
        return sum(entries.read for entries in self.layers.values())

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output = self.method.attend(query, key, value, call)
        self.take(query, key, value, call)
        return output

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.layers[call.layer] = self._kept(query, key, value, call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries = self.layers[call.layer]
        entries.leave_window(call)
        entries.append(key, value)
        return entries.attend(query, call)

    def held(self) -> Sequence[Tensor]:
        return [part for entries in self.layers.values() for part in entries.held()]

    def _kept(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> KeptEntries:
        (batch, heads, n, _), method = key.shape, self.method
        reach = n if call.window is None else call.window
        scores = torch.zeros(batch, heads, n, device=key.device)
        worth = torch.full_like(scores, -inf)
        counts, most, first = (key.new_zeros(batch, 1, 1, dtype=torch.long) for _ in range(3))
        for rows, kept, (q, k, v), row_call in unpadded(query, key, value, call):
            m = k.shape[2]
            token = torch.arange(m, device=key.device)
            tokens = token if kept is None else kept
            first[rows], most[rows] = n - m, method.capacity(self.workload, m, call.layer)
            if call.window is not None:
                most[rows].clamp_(max=reach)
            counts[rows] = most[rows].clamp(max=m)
            if m:
                score = self._scores(rows.start, q, k, v, row_call).to(scores.dtype)
                row = Rows(torch.zeros_like(most[rows]), m, most[rows])
                scores[rows, :, tokens] = score
                worth[rows, :, tokens] = method.worth(score, token.expand_as(score), row)
        worth[:, :, : max(0, n - reach)] = -inf
        # Stable: pooled maxima tie, and the first of them are kept in every row, padded or not.
        best = worth.sort(descending=True, stable=True).indices[..., : int(counts.max())]
        none = torch.arange(best.shape[2], device=key.device) >= counts
        order = best.masked_fill(none, n).sort().values
        order = order.masked_fill(order == n, -1)
        more = [scores] if method.keeps_scores else []
        return KeptEntries(key, value, order, Rows(first, n, most), *more)

    def _scores(
        self, row: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        """The method's `scores` of the rows from one on, computed once for caches that differ in
        budget."""
        of = (self.scorer, row)
        return once(call, of, lambda: self.method.scores(query, key, value, call))


class RollingCache(EvictingCache):
    """The cache of a `Rolling` method."""

    method: Rolling

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries, outputs = self.layers[call.layer], []
        if query.shape[2] == 1:
            return self.method.step(entries, query, key, value, call)
        for q, k, v in zip(*(x.split(1, 2) for x in (query, key, value)), strict=True):
            outputs.append(self.method.step(entries, q, k, v, call))
        return torch.cat(outputs, 2)
