"""Attention that reads k keys: the search for them, and the softmax over what it finds.

The k keys nearest to T_Q(q) among the T_K(k_j) are those with the largest attention weights
(IceFormer, arXiv 2405.02842, §4.1, eq. 3-10), whatever the norms of the keys. An index says which
keys are candidates for a query (`methods/indices.py`); `read` scores those exactly and keeps the
best k. An index takes new keys at any time (§4.3), and what a query finds never depends on keys
that it doesn't see.
Shapes: B batch, H heads, q queries, n keys, d head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from methods.base import Call, PositionBias

ROWS = 256  # queries that get their scores at once


@dataclass(frozen=True)
class Bias:
    """What is added to scores: a position bias, and one number for each key.

    queries, keys  their positions [1, q] and [1, n]; for_keys [1, 1, 1, n] or None
    """

    queries: Tensor
    keys: Tensor
    positions: PositionBias | None
    for_keys: Tensor | None

    @classmethod
    def of(cls, call: Call, row: slice, kept: Tensor, queries: slice) -> Bias:
        """That of one row of a call, for the tokens kept [n] bool as keys."""
        positions = torch.arange(len(kept), device=kept.device)[None]
        if call.sequence.positions is not None:
            positions = call.sequence.positions[row]
        counts = call.sequence.log_multiplicity
        for_keys = None if counts is None else counts[row][:, None, None, kept].float()
        return cls(positions[:, queries], positions[:, kept], call.bias, for_keys)

    def by_distance(self) -> tuple[Tensor, Tensor] | str:
        """The bias [H, 2m-1] at distance -(m-1) … m-1, and where each query stands among the keys,
        [q] int64; or why it isn't one of distance alone."""
        if self.positions is None or self.for_keys is not None:
            return "a bias of keys on scores"
        if self.keys.shape[1] and not bool((self.keys.diff(dim=1) == 1).all()):
            return "a position bias, and gaps among the positions"
        places = (self.queries - self.keys[:, :1])[0]
        reach = torch.stack((places.max(), self.keys.shape[1] - places.min()))
        return self.positions.diagonals(int(reach.max()) + 1).float(), places

    def __call__(self, rows: slice, n: int) -> Tensor:
        """[1, H or 1, rows, n], for the first n keys."""
        bias = torch.zeros(1, device=self.keys.device)
        if self.positions is not None:
            bias = self.positions(self.queries[:, rows], self.keys[:, :n])
        return bias if self.for_keys is None else bias + self.for_keys[..., :n]


@dataclass(frozen=True)
class Reads:
    """Queries, and the keys they choose from; no padding is among these.

    query [B, H, q, d]; key, value [B, H, n, d]
    seen  [q] int64, never falling: a query sees the first so many keys
    k     keys that a query reads
    """

    query: Tensor
    key: Tensor
    value: Tensor
    seen: Tensor
    k: int
    scale: float
    bias: Bias | None = None

    def scores(self, rows: slice, n: int) -> Tensor:
        """[B, H, rows, n] with the first n keys; -inf where one isn't seen."""
        scores = self.query[:, :, rows].float() @ self.key[:, :, :n].float().mT * self.scale
        if self.bias is not None:
            scores = scores + self.bias(rows, n)
        return scores.masked_fill(unseen(self.seen[rows], n), -math.inf)

    def of(self, queries: Tensor) -> Reads:
        """The same for some of the queries, [j] int64."""
        bias = self.bias and replace(self.bias, queries=self.bias.queries[:, queries])
        return replace(self, query=self.query[:, :, queries], seen=self.seen[queries], bias=bias)

    def slices(self) -> list[slice]:
        q = len(self.seen)
        return [slice(start, min(start + ROWS, q)) for start in range(0, q, ROWS)]


def read(reads: Reads, index: Index) -> tuple[Tensor, Tensor]:
    """Softmax over the best k candidates: the output [B, H, q, d] in float32, 0 where a query sees
    no key, and the ids of the keys read [B, H, q, k], -1 where there are fewer."""
    query, value = reads.query, reads.value.float()
    output = query.new_zeros(*query.shape[:3], value.shape[-1], dtype=torch.float32)
    ids = torch.full((*query.shape[:3], reads.k), -1, device=query.device)
    for rows in reads.slices():
        seen = reads.seen[rows]
        n = int(seen.max())
        if not n:
            continue
        scores = reads.scores(rows, n)
        bias = None if reads.bias is None else reads.bias(rows, n) / reads.scale
        candidates = index.candidates(query[:, :, rows], seen, reads.k, bias)
        if candidates is not None:
            scores = scores.masked_fill_(~candidates, -math.inf)
        best = scores.topk(min(reads.k, n))
        none = best.values == -math.inf
        # An all-hidden row would be NaN: its weights are made of zeros, then taken away.
        weights = best.values.masked_fill(none.all(-1, keepdim=True), 0).softmax(-1)
        weights = weights.masked_fill(none, 0)
        first = torch.arange(0, value[..., 0].numel(), value.shape[2], device=query.device)
        flat = best.indices + first.view(*value.shape[:2], 1, 1)
        found = value.reshape(-1, value.shape[-1]).index_select(0, flat.flatten())
        found = found.view(*flat.shape, -1)
        output[:, :, rows] = (weights[..., None, :] @ found)[..., 0, :]
        ids[:, :, rows, : none.shape[-1]] = best.indices.masked_fill(none, -1)
    return output, ids


def quality(reads: Reads, ids: Tensor) -> dict[str, Tensor]:
    """Against brute force, each [B, H, q]: see `IceFormer.diagnose`; ids as `read` gives them."""
    parts: dict[str, list[Tensor]] = {"recall": [], "mass": [], "mass_best": []}
    for rows in reads.slices():
        scores, found = reads.scores(rows, reads.key.shape[2]).double(), ids[:, :, rows]
        best = scores.topk(min(reads.k, scores.shape[-1])).values
        floor = best.masked_fill(best == -math.inf, math.inf).amin(-1, keepdim=True)
        got = scores.gather(-1, found.clamp(min=0)).masked_fill(found < 0, -math.inf)
        total = scores.logsumexp(-1, keepdim=True)
        parts["recall"].append((got >= floor).sum(-1) / (best > -math.inf).sum(-1))
        parts["mass"].append((got - total).exp().sum(-1))
        parts["mass_best"].append((best - total).exp().sum(-1))
    return {name: torch.cat(values, -1) for name, values in parts.items()}


def folded(query: Tensor, key: Tensor) -> Tensor:
    """[B, H, q, d] → [B, H of key, q·groups, d]: the queries of a token that share keys come one
    after the other."""
    grouped: Tensor = query.unflatten(1, (key.shape[1], -1))
    return grouped.transpose(2, 3).flatten(2, 3)


def unfolded(output: Tensor, shape: torch.Size) -> Tensor:
    """Undoes `folded`: [B, H of key, q·groups, d] → [B, H, q, d] with the query's shape."""
    grouped: Tensor = output.unflatten(2, (shape[2], -1))
    return grouped.transpose(2, 3).flatten(1, 2)


def unseen(seen: Tensor, n: int) -> Tensor:
    """[q, n], True where a key comes after those that are seen."""
    return torch.arange(n, device=seen.device) >= seen[:, None]


class Index(Protocol):
    """Keys that were added, and which of them are candidates for a query."""

    def add(self, key: Tensor) -> None:
        """key [B, H, t, d]: the next t keys."""
        ...

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, bias: Tensor | None = None
    ) -> Tensor | None:
        """bool [B, H, q, n], True where one of the first seen[i] keys is a candidate of query i;
        query [B, H, q, d], seen [q] int64, n = max(seen), k the keys wanted; bias [1, H or 1, q,
        n] is added to inner products, where the index goes by these. None: all are."""
        ...

    def native(self, reads: Reads) -> tuple[Tensor, Tensor] | str:
        """What `read` gives, by the native kernel; without `add`, and before it. Or why not."""
        ...
