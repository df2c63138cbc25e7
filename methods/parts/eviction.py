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
from methods.parts.attention import batched_product, capped, logits, softmax
from methods.parts.kv_cache import BLOCK, CacheMethod, Entries, once
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


@dataclass(frozen=True)
class Rows:
    """The rows of a batch; each field but `seen` is [B or 1, 1, 1].

    first  the number of each row's first token: 0 without padding
    seen   tokens so far, padding included
    most   entries that each row may hold in a KV head
    """

    first: Tensor
    seen: int
    most: Tensor


class KeptEntries(Entries):
    """The entries that an evicting method keeps of one layer. A row may have fewer of them than
    others: the rest of its entries have the token -1 and are not read.

    score  [B, G, E] a number of the method for each entry; 0 for new ones
    place  [B, G, 1] index of the entry that the next token replaces; None: it comes at the end
    read   bytes of keys and values read so far
    """

    def __init__(
        self, key: Tensor, value: Tensor, kept: Tensor, rows: Rows, *score: Tensor
    ) -> None:
        """Copies the entries at indices `kept` [B, G, E] (-1: none) of the prompt's keys and values
        [B, G, n, d], and of `score` [B, G, n] if given."""
        at = kept.clamp(min=0)
        parts = [x.gather(2, _wide(at, x)) for x in (key, value)]
        super(Entries, self).__init__(
            [*parts, kept.contiguous(), *(x.gather(2, at) for x in score)]
        )
        self.seen, self.read, self._rows = rows.seen, 0, rows
        self.limit, self.padded = int(rows.most.max()), bool((kept < 0).any())
        self.place: Tensor | None = None
        self._left_at = self.size

    @property
    def rows(self) -> Rows:
        return Rows(self._rows.first, self.seen, self._rows.most)

    @property
    def score(self) -> Tensor:
        return self._parts[3][:, :, : self.size]

    def dropped(self) -> Tensor:
        """[B, 1]: how many tokens of each row are no longer held."""
        held = (self.token[:, :1] >= 0).sum(-1) if self.padded else self.size
        return self.seen - self._rows.first[:, :, 0] - held

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds the next tokens' keys and values [B, G, t, d]: one at the index that `displace`
        chose, or all at the end."""
        seen, place = self.seen + key.shape[2], self.place
        if place is None:
            token = torch.arange(self.seen, seen, device=key.device)
            self.add(key, value, token, *(x.new_zeros(()) for x in self._parts[3:]))
        else:
            # Entries as rows of a matrix: `scatter_` would copy all of them in half precision.
            heads, room = place.numel(), self._parts[2].shape[2]
            row = place.flatten() + torch.arange(0, heads * room, room, device=place.device)
            for part, new in zip(self._parts, (key, value), strict=False):
                part.view(heads * room, -1).index_copy_(0, row, new.flatten(0, 2))
            for part, number in zip(self._parts[2:], (self.seen, 0), strict=False):
                part.view(-1).index_fill_(0, row, number)
        self.seen, self.place = seen, None

    def displace(self, worth: Tensor, spare: int, call: AttentionCall) -> None:
        """Lets the next token replace the entry of least `worth` [B, G, E], in rows that hold
        `spare` more than they may. Entries outside the window are worth nothing."""
        if self.size < self.limit + spare:
            return
        if call.window is not None:
            worth = worth.masked_fill(self.token <= self.seen - call.window, -inf)
        if self.padded:
            hole = self.token < 0
            full = (~hole).sum(-1, keepdim=True) >= self._rows.most + spare
            worth = worth.masked_fill(hole & full, inf).masked_fill(hole & ~full, -inf)
        self.place = worth.argmin(-1, keepdim=True)

    def leave_window(self, call: AttentionCall) -> None:
        """Frees the entries that no later query reaches, after every `BLOCK` new tokens. The
        entries are in the order of their tokens."""
        if call.window is None or self.size < self._left_at + BLOCK:
            return
        within = (self.token >= 0) & (self.token > self.seen - call.window)
        most = int(within.sum(-1).max())
        last = within.to(torch.int8).argsort(dim=-1, stable=True)[:, :, -most:]
        self.padded = not bool(within.gather(2, last).all())
        self.token.masked_fill_(~within, -1)
        self._parts = [
            part.gather(2, _wide(last, part) if part.dim() == 4 else last) for part in self.parts()
        ]
        self.size = self._left_at = most

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        self.read += self.bytes()
        return super().attend(query, call)

    def attend_by(self, scores: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Scores [B, H, t, E] of `logits` → the output [B, H, t, d] and weights [B, H, t, E]."""
        self.read += self.bytes()
        weights, value = softmax(scores, call), self.value
        by_head = weights.to(value.dtype).view(value.shape[0] * value.shape[1], -1, self.size)
        output = batched_product(by_head, value.flatten(0, 1))
        return output.view(*weights.shape[:3], -1), weights

    def logits(self, query: Tensor, call: AttentionCall, count: int | None = None) -> Tensor:
        """The query of the newest token [B, H, 1, d] → its scores [B, H, 1, E] in float32 or wider,
        or those of the first `count` entries; -inf where nothing is read."""
        scores = capped(logits(query, self.key[:, :, :count], call.scale), call)
        visible = self._visible(query, call)
        return scores if visible is None else scores.masked_fill_(~visible[..., :count], -inf)

    def held(self) -> list[Tensor]:
        place = [] if self.place is None else [self.place]
        return [*super().held(), self._rows.first, self._rows.most, *place]

    def _visible(self, query: Tensor, call: AttentionCall) -> Tensor | None:
        t = query.shape[2]
        window = self.seen if call.window is None else call.window
        if t == 1 and not self.padded and window >= self.seen:
            return None
        at = torch.arange(self.seen - t, self.seen, device=query.device)[:, None]
        token = self.token[:, :, None]
        visible = (token >= 0) & (token <= at) & (token > at - window)
        return visible.repeat_interleave(query.shape[1] // self.key.shape[1], 1)


def _wide(index: Tensor, x: Tensor) -> Tensor:
    """Indices [B, G, k] of entries of x [B, G, E, d], expanded for `gather`."""
    return index[..., None].expand(*index.shape, x.shape[3])
