"""The inputs of attention over k keys: an attention call split into rows without padding.

Shapes: B batch, H heads, q queries, n keys, d head size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods.parts.attention import per_head
from methods.parts.sequence import AttentionCall, PositionBias

SCORES = 1 << 19  # computed at once: more cost memory, fewer slow down the products
LEAST, MOST = 16, 256  # queries of a head whose scores are computed at once


@dataclass(frozen=True)
class ScoreBias:
    """Bias to add to scores: a position bias, and one number for each key.

    queries, keys  their positions [1, q] and [1, n]
    for_keys       [1, 1, 1, n] or None
    """

    queries: Tensor
    keys: Tensor
    positions: PositionBias | None
    for_keys: Tensor | None

    @classmethod
    def of(cls, call: AttentionCall, row: slice, kept: Tensor, queries: slice) -> ScoreBias:
        """The bias of one row of a call, with the tokens kept [n] bool as keys."""
        positions = torch.arange(len(kept), device=kept.device)[None]
        if call.sequence.positions is not None:
            positions = call.sequence.positions[row]
        counts = call.sequence.log_multiplicity
        for_keys = None if counts is None else counts[row][:, None, None, kept].float()
        return cls(positions[:, queries], positions[:, kept], call.bias, for_keys)

    def by_distance(self) -> tuple[Tensor, Tensor] | str:
        """The bias [H, 2m-1] at distance -(m-1) … m-1, and the index of each query among the keys,
        [q] int64; or the reason why the bias depends on more than distance."""
        if self.positions is None or self.for_keys is not None:
            return "a bias of keys on scores"
        if self.keys.shape[1] and not bool((self.keys.diff(dim=1) == 1).all()):
            return "a position bias, and gaps among the positions"
        places = (self.queries - self.keys[:, :1])[0]
        reach = torch.stack((places.max(), self.keys.shape[1] - places.min()))
        return self.positions.diagonals(int(reach.max()) + 1).float(), places

    def by_head(self) -> list[HeadBias] | None:
        """The bias of each head, or None where it depends on more than distance."""
        result = self.by_distance()
        if isinstance(result, str):
            return None
        table, places = result
        return [HeadBias(row, places) for row in table]

    def __call__(self, rows: slice, n: int) -> Tensor:
        """[1, H or 1, rows, n], for the first n keys."""
        bias = torch.zeros(1, device=self.keys.device)
        if self.positions is not None:
            bias = self.positions(self.queries[:, rows], self.keys[:, :n])
        return bias if self.for_keys is None else bias + self.for_keys[..., :n]


@dataclass(frozen=True)
class HeadBias:
    """Bias to add to the scores of one head: table [2m-1], at distance -(m-1) … m-1, key j minus
    the query's index [q]."""

    table: Tensor
    places: Tensor

    def __call__(self, rows: slice, n: int) -> Tensor:
        """[1, 1, rows, n], for the first n keys."""
        first = len(self.table) // 2 - self.places[rows]
        return self.table.unfold(0, n, 1)[first][None, None]


@dataclass(frozen=True)
class TopKInputs:
    """Queries and the keys they select from, without padding.

    query [B, H, q, d]; key, value [B, H, n, d]
    seen  [q] int64, non-decreasing: a query sees the first `seen` keys
    k     keys that a query attends to
    """

    query: Tensor
    key: Tensor
    value: Tensor
    seen: Tensor
    k: int
    scale: float
    bias: ScoreBias | HeadBias | None = None

    def scores(self, rows: slice, n: int, room: Tensor | None = None) -> Tensor:
        """[B, H, rows, n] with the first n keys; -inf for keys that a query does not see. `room`
        [B·H·rows·n or more]: memory for the scores, since allocating it would take as long as the
        products."""
        query = self.query[:, :, rows].float() * self.scale
        shape = (*query.shape[:3], n)
        out = None if room is None else room[: math.prod(shape)].view(-1, *shape[2:])
        keys = self.key[:, :, :n].float().mT
        scores = torch.bmm(query.flatten(0, 1), keys.flatten(0, 1), out=out).view(shape)
        if self.bias is not None:
            scores += self.bias(rows, n)
        if int(self.seen[rows].min()) < n:
            scores = scores.masked_fill_(unseen(self.seen[rows], n), -math.inf)
        return scores

    def bias_by_distance(self) -> tuple[Tensor | None, Tensor | None] | str:
        """`ScoreBias.by_distance`; two None where there is no bias."""
        if self.bias is None:
            return None, None
        assert isinstance(self.bias, ScoreBias)
        return self.bias.by_distance()

    def of(self, queries: Tensor) -> TopKInputs:
        """The same inputs for some of the queries, [j] int64."""
        bias = self.bias
        if isinstance(bias, ScoreBias):
            bias = replace(bias, queries=bias.queries[:, queries])
        return replace(self, query=self.query[:, :, queries], seen=self.seen[queries], bias=bias)

    def heads(self) -> Iterator[tuple[slice, slice, TopKInputs]]:
        """Rows, heads and their inputs, one head at a time; all heads at once where the bias
        depends on more than distance."""
        batch, count = self.key.shape[:2]
        biases: list[HeadBias] | list[None] | None = [None] * count
        if self.bias is not None:
            assert isinstance(self.bias, ScoreBias)
            biases = self.bias.by_head()
        if biases is None:
            yield slice(None), slice(None), self
            return
        for b, h in itertools.product(range(batch), range(count)):
            row, head = slice(b, b + 1), slice(h, h + 1)
            query, key, value = (x[row, head] for x in (self.query, self.key, self.value))
            yield row, head, replace(self, query=query, key=key, value=value, bias=biases[h])

    def chunks(self) -> list[slice]:
        """Slices of the queries, small enough for the limit on scores at once."""
        q, of_a_query = len(self.seen), self.key[..., 0].numel()
        size = max(LEAST, min(MOST, SCORES // max(of_a_query, 1)))
        return [slice(start, min(start + size, q)) for start in range(0, q, size)]


def inputs_by_row(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, k_of: Callable[[int], int]
) -> Iterator[tuple[TopKInputs, Tensor]]:
    """The inputs of a call, and which queries are not padding, [j] int64: the whole batch, or row
    by row where there is padding or a bias for each row. The queries are the last tokens; `k_of`
    gives k for a number of valid tokens."""
    sequence, (batch, _, n, _) = call.sequence, key.shape
    last = slice(n - query.shape[2], n)
    if call.bias is not None:  # each query head has a separate bias
        key, value = per_head(query, key, value)
    query, groups = fold_groups(query, key), query.shape[1] // key.shape[1]
    valid = sequence.valid
    if valid is None or bool(valid.all()):
        valid = torch.ones(batch, n, dtype=torch.bool, device=query.device)
    biased = call.bias is not None or sequence.log_multiplicity is not None
    together = not biased and bool(valid.all())
    for row in [slice(None)] if together else [slice(b, b + 1) for b in range(batch)]:
        kept = valid[row][0]
        before = kept.cumsum(0) if sequence.causal else kept.sum().expand(n)
        inputs = TopKInputs(
            query=query[row],
            key=key[row] if together else key[row][:, :, kept],
            value=value[row] if together else value[row][:, :, kept],
            seen=before[last].repeat_interleave(groups),
            k=k_of(int(kept.sum())),
            scale=call.scale,
            bias=ScoreBias.of(call, row, kept, last) if biased else None,
        )
        yield inputs, kept[last].repeat_interleave(groups).nonzero()[:, 0]


def fold_groups(query: Tensor, key: Tensor) -> Tensor:
    """[B, H, q, d] → [B, H of key, q·groups, d]: queries of one token that share keys are
    adjacent."""
    grouped: Tensor = query.unflatten(1, (key.shape[1], -1))
    return grouped.transpose(2, 3).flatten(2, 3)


def unfold_groups(output: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `fold_groups`: [B, H of key, q·groups, d] → [B, H, q, d] of this shape."""
    grouped: Tensor = output.unflatten(2, (shape[2], -1))
    return grouped.transpose(2, 3).flatten(1, 2)


def unseen(seen: Tensor, n: int) -> Tensor:
    """[q, n], True where a key comes after those that the query sees."""
    return torch.arange(n, device=seen.device) >= seen[:, None]


def append(old: Tensor, new: Tensor) -> Tensor:
    """[B, H, n, …] and [B, H, t, …] → [B, H, n + t, …]; `old` may be empty."""
    return torch.cat((old, new), 2) if old.numel() else new
