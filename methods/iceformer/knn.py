"""Attention over k keys: candidates from an index, and the softmax over the best k of them.

The k keys nearest to T_Q(q) among the T_K(k_j) are those with the largest attention weights
(IceFormer, arXiv 2405.02842, §4.1, eq. 3-10), whatever the norms of the keys. An index proposes
candidate keys for a query (`dci.py`, `scans.py`); `topk_attention` scores those exactly
and keeps the best k. Keys can be added to an index at any time (§4.3), and the result for a query
never depends on keys that it does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from methods.iceformer.inputs import TopKInputs


class Index(Protocol):
    """Keys that were added, and which of them are candidates for a query."""

    def add(self, key: Tensor) -> None:
        """key [B, H, t, d]: the next t keys."""
        ...

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, bias: Tensor | None = None
    ) -> Tensor | None:
        """bool [B, H, q, n], True where one of the first seen[i] keys is a candidate for query i;
        query [B, H, q, d], seen [q] int64, n = max(seen), k the keys wanted; bias [1, H or 1, q,
        n] is added to inner products by indices that rank by these. None: all are."""
        ...

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        """The result of `topk_attention` by the native kernel, called without and before `add`; or
        the reason why it can't run."""
        ...


def topk_attention(inputs: TopKInputs, index: Index) -> tuple[Tensor, Tensor]:
    """Softmax over the best k candidates: the output [B, H, q, d] in float32, 0 where a query sees
    no key, and the ids of the selected keys [B, H, q, k], -1 where there are fewer."""
    query, value = inputs.query, inputs.value.float()
    output = query.new_zeros(*query.shape[:3], value.shape[-1], dtype=torch.float32)
    ids = torch.full((*query.shape[:3], inputs.k), -1, device=query.device)
    for rows in inputs.chunks():
        seen = inputs.seen[rows]
        n = int(seen.max())
        if not n:
            continue
        scores = inputs.scores(rows, n)
        bias = None if inputs.bias is None else inputs.bias(rows, n) / inputs.scale
        candidates = index.candidates(query[:, :, rows], seen, inputs.k, bias)
        if candidates is not None:
            scores = scores.masked_fill_(~candidates, -math.inf)
        best = scores.topk(min(inputs.k, n))
        none = best.values == -math.inf
        # The softmax of a row without keys would be NaN: it is taken of zeros, then masked out.
        weights = best.values.masked_fill(none.all(-1, keepdim=True), 0).softmax(-1)
        weights = weights.masked_fill(none, 0)
        first = torch.arange(0, value[..., 0].numel(), value.shape[2], device=query.device)
        flat = best.indices + first.view(*value.shape[:2], 1, 1)
        selected = value.reshape(-1, value.shape[-1]).index_select(0, flat.flatten())
        selected = selected.view(*flat.shape, -1)
        output[:, :, rows] = (weights[..., None, :] @ selected)[..., 0, :]
        ids[:, :, rows, : none.shape[-1]] = best.indices.masked_fill(none, -1)
    return output, ids


def selection_quality(inputs: TopKInputs, ids: Tensor) -> dict[str, Tensor]:
    """The figures of `Method.diagnose` against brute force, each [B, H, q]; ids as
    `topk_attention` returns them."""
    parts: dict[str, list[Tensor]] = {"recall": [], "mass": [], "mass_best": []}
    for rows in inputs.chunks():
        scores, selected = inputs.scores(rows, inputs.key.shape[2]).double(), ids[:, :, rows]
        best = scores.topk(min(inputs.k, scores.shape[-1])).values
        floor = best.masked_fill(best == -math.inf, math.inf).amin(-1, keepdim=True)
        own = scores.gather(-1, selected.clamp(min=0)).masked_fill(selected < 0, -math.inf)
        total = scores.logsumexp(-1, keepdim=True)
        parts["recall"].append((own >= floor).sum(-1) / (best > -math.inf).sum(-1))
        parts["mass"].append((own - total).exp().sum(-1))
        parts["mass_best"].append((best - total).exp().sum(-1))
    return {name: torch.cat(values, -1) for name, values in parts.items()}


def mean_quality(
    rows: Iterable[tuple[TopKInputs, Tensor]],
    select: Callable[[TopKInputs], Tensor],
    queries: int,
) -> dict[str, float]:
    """The means of `selection_quality` over `queries` evenly spread valid tokens of each row, as
    `inputs_by_row` gives them; `select` gives the ids of the keys selected."""
    parts: dict[str, list[Tensor]] = {"recall": [], "mass": [], "mass_best": []}
    for row, tokens in rows:
        spread = torch.linspace(0, len(tokens) - 1, min(queries, len(tokens)))
        sample = row.of(tokens[spread.round().long().to(tokens.device)])
        for name, values in selection_quality(sample, select(sample)).items():
            parts[name].append(values.flatten())
    return {name: float(torch.cat(values).mean()) for name, values in parts.items()}
