"""Attention over k keys: candidates from an index, and the softmax over the best k of them.

The k keys nearest to T_Q(q) among the T_K(k_j) are those with the largest attention weights
(IceFormer, arXiv 2405.02842, §4.1, eq. 3-10), for any norms of the keys. An index proposes
candidate keys for a query (`dci.py`, `scans.py`); `topk_attention` scores those exactly and keeps
the best k. Keys can be added to an index at any time (§4.3), and the result for a query never
depends on keys that it does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from methods.iceformer.inputs import TopKInputs

Bias = Callable[[], Tensor]
GROUP = 4  # scores in a group, which their maximum represents
FEW = 2  # up to this many groups for each of the k, a search among all scores is as fast


class Index(Protocol):
    """Keys to which more can be added, and the choice of candidates among them for a query."""

    def add(self, key: Tensor) -> None:
        """key [B, H, t, d]: the next t keys."""
        ...

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, scale: float = 1, bias: Bias | None = None
    ) -> Tensor | None:
        """bool [B, H, q, n], True where one of the first seen[i] keys is a candidate for query i;
        query [B, H, q, d], seen [q] int64, n = max(seen), k keys are wanted. Indices that rank by
        scaled inner products add bias() [1, H or 1, q, n] to them. None: all keys are
        candidates."""
        ...

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        """The output of `topk_attention` and the ids, by the native kernel, or the reason why it
        can't run. Must be called before `add`, which it doesn't need."""
        ...

    def held(self) -> list[Tensor]:
        """All tensors that the index holds."""
        ...


def topk_attention(inputs: TopKInputs, index: Index, ids: Tensor | None = None) -> Tensor:
    """Softmax over the best k candidates: [B, H, q, d] in float32, 0 where a query sees no key.
    `ids` [B, H, q, k] int64 gets the ids of the selected keys, -1 where there are fewer."""
    query, value = inputs.query, inputs.value.float()
    output = query.new_zeros(*query.shape[:3], value.shape[-1], dtype=torch.float32)
    if ids is not None:
        ids.fill_(-1)
    heads = torch.arange(value.shape[0] * value.shape[1], device=query.device)
    first = (heads * value.shape[2]).view(*value.shape[:2], 1, 1)
    table = value.reshape(-1, value.shape[-1])
    chunks = inputs.chunks()
    room = output.new_empty(
        max((c.stop - c.start for c in chunks), default=0) * inputs.key[..., 0].numel()
    )
    for rows in chunks:
        seen = inputs.seen[rows]
        n = int(seen.max())
        if not n:
            continue
        scores = inputs.scores(rows, n, room)
        bias = None if inputs.bias is None else partial(inputs.bias, rows, n)
        candidates = index.candidates(query[:, :, rows], seen, inputs.k, inputs.scale, bias)
        if candidates is not None:
            scores = scores.masked_fill_(~candidates, -math.inf)
        values, places = best_of(scores, min(inputs.k, n))
        none = values == -math.inf
        # The softmax of a row without keys would be NaN: its scores are set to 0, then masked out.
        weights = values.masked_fill(none.all(-1, keepdim=True), 0).softmax(-1)
        weights = weights.masked_fill_(none, 0).flatten(0, 2)
        flat = (places + first).flatten(0, 2)
        read = embedding_bag(flat, table, mode="sum", per_sample_weights=weights)
        output[:, :, rows] = read.view(*none.shape[:3], -1)
        if ids is not None:
            ids[:, :, rows, : none.shape[-1]] = places.masked_fill(none, -1)
    return output


def attend_by_head(
    inputs: TopKInputs, new_index: Callable[[], Index], ids: Tensor | None = None
) -> Tensor:
    """`topk_attention` head by head with new indices, so that scores fit a core's cache."""
    value = inputs.value
    output = value.new_empty(*inputs.query.shape[:3], value.shape[-1], dtype=torch.float32)
    for row, head, own in inputs.heads():
        index = new_index()
        index.add(own.key)
        own_ids = None if ids is None else ids[row, head]
        output[row, head] = topk_attention(own, index, own_ids)
    return output


def selection_quality(inputs: TopKInputs, ids: Tensor) -> dict[str, Tensor]:
    """The figures of `Method.diagnose` against brute force, each [B, H, q]; ids as in
    `topk_attention`."""
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
    """The means of `selection_quality` over `queries` evenly spread valid tokens of each row, from
    `inputs_by_row`; `select` returns the ids of the selected keys."""
    parts: dict[str, list[Tensor]] = {"recall": [], "mass": [], "mass_best": []}
    for row, tokens in rows:
        spread = torch.linspace(0, len(tokens) - 1, min(queries, len(tokens)))
        sample = row.of(tokens[spread.round().long().to(tokens.device)])
        for name, values in selection_quality(sample, select(sample)).items():
            parts[name].append(values.flatten())
    return {name: float(torch.cat(values).mean()) for name, values in parts.items()}


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row [..., n], k ≤ n, and their indices, [..., k] each, in any order.

    `torch.topk` takes as long for a row as fused attention. But the k largest numbers are all in
    the k groups with the largest maxima, since k numbers are above those of any other group. So
    only these groups are searched, and the maxima in the same way.
    """
    n = scores.shape[-1]
    groups = n // GROUP
    if groups <= FEW * k:
        all_of_them = scores.topk(k, sorted=False)
        return all_of_them.values, all_of_them.indices
    whole = groups * GROUP  # group i has the numbers i, i + groups, i + 2·groups, …
    maxima = scores[..., :whole].unflatten(-1, (GROUP, groups)).amax(-2)
    chosen = best_of(maxima, k)[1]
    places = (chosen[..., None] + torch.arange(0, whole, groups, device=chosen.device)).flatten(-2)
    if whole < n:
        rest = torch.arange(whole, n, device=chosen.device).expand(*chosen.shape[:-1], -1)
        places = torch.cat((places, rest), -1)
    values, best = scores.gather(-1, places).topk(k, sorted=False)
    return values, places.gather(-1, best)
