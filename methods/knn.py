"""Attention that reads k keys: the search for them, and the softmax over what it finds.

The k keys nearest to T_Q(q) among the T_K(k_j) are those with the largest attention weights
(IceFormer, arXiv 2405.02842, §4.1, eq. 3-10), whatever the norms of the keys. An index says which
keys are candidates for a query; `read` scores those exactly and keeps the best k.

- `Exact`: every key is a candidate.
- `Dci`: Prioritized DCI (Li & Malik, arXiv 1703.00440; IceFormer, algorithms 2 and 3), which ranks
  keys by m·L random projections. A key enters S_l when the last of its m lists gives it out, and
  the lists of one composite index give out keys in the order of |projection difference|; so S_l
  is the k0 keys with the smallest largest difference, and this is computed without lists.
  Projections are held in 8 bits, and keys as far as the k0-th belong to S_l too.
- `Quantized`: the largest inner products of 8-bit numbers (not in the paper, which leaves the
  k-NNS open: §4.2).

All of them take new keys at any time (§4.3), and what a query finds never depends on keys that it
doesn't see.
Shapes: B batch, H heads, q queries, n keys, d head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from methods import kernels
from methods.base import Call, PositionBias

ROWS = 256  # queries that get their scores at once
BLOCK = kernels.BLOCK  # keys that share a mean in `Quantized`
REACH = 4.0  # projections of unit vectors are held up to this many standard deviations
FAR = 255  # farther than any two projections
TINY = 1e-30


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
        return scores.masked_fill(_unseen(self.seen[rows], n), -math.inf)

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
        candidates = index.candidates(query[:, :, rows], seen, reads.k)
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


def repeated(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Keys and values of grouped queries, one head for each of the query's."""
    groups = query.shape[1] // shared[0].shape[1]
    return [x.repeat_interleave(groups, 1) if groups > 1 else x for x in shared]


def folded(query: Tensor, key: Tensor) -> Tensor:
    """[B, H, q, d] → [B, H of key, q·groups, d]: the queries of a token that share keys come one
    after the other."""
    grouped: Tensor = query.unflatten(1, (key.shape[1], -1))
    return grouped.transpose(2, 3).flatten(2, 3)


def unfolded(output: Tensor, shape: torch.Size) -> Tensor:
    """Undoes `folded`: [B, H of key, q·groups, d] → [B, H, q, d] with the query's shape."""
    grouped: Tensor = output.unflatten(2, (shape[2], -1))
    return grouped.transpose(2, 3).flatten(1, 2)


def embed_keys(key: Tensor, c: Tensor | float) -> Tensor:
    """T_K (eq. 3): [..., n, d] → unit vectors [..., n, d+1]; c is at least every key's norm, a
    number or [..., 1, 1]."""
    scaled = key / c
    rest = (1 - scaled.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
    return torch.cat((scaled, rest), -1)


def embed_queries(query: Tensor) -> Tensor:
    """T_Q (eq. 4): [..., q, d] → unit vectors [..., q, d+1]."""
    norm = query.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(query.dtype).tiny)
    return torch.cat((query / norm, torch.zeros_like(norm)), -1)


class Index(Protocol):
    """Keys that were added, and which of them are candidates for a query."""

    def add(self, key: Tensor) -> None:
        """key [B, H, t, d]: the next t keys."""
        ...

    def candidates(self, query: Tensor, seen: Tensor, k: int) -> Tensor | None:
        """bool [B, H, q, n], True where one of the first seen[i] keys is a candidate of query i;
        query [B, H, q, d], seen [q] int64, n = max(seen), k the keys wanted. None: all are."""
        ...

    def native(self, reads: Reads) -> tuple[Tensor, Tensor] | str:
        """What `read` gives, by the native kernel; without `add`, and before it. Or why not."""
        ...


class Exact:
    """Every key is a candidate: recall 1."""

    def add(self, key: Tensor) -> None:
        pass

    def candidates(self, query: Tensor, seen: Tensor, k: int) -> Tensor | None:
        return None

    def native(self, reads: Reads) -> tuple[Tensor, Tensor] | str:
        return "search=exact"


class Dci:
    """Prioritized DCI: m simple indices in each of L composite ones.

    k0  keys to retrieve in each composite index; below 1: as a share of the keys seen
    k1  keys to visit in each, counted in each of its lists; None: until k0 are retrieved
    """

    def __init__(self, d: int, m: int, L: int, k0: float, k1: int | None, seed: int) -> None:
        self.d, self.m, self.L, self.k0, self.k1 = d, m, L, k0, k1
        # Random unit vectors [d+1, m·L]; the last row meets the coordinate that T_K adds. At right
        # angles to one another, as many as can be: they tell more of a key than any m·L would.
        draw = torch.randn(d + 1, m * L, generator=torch.Generator().manual_seed(seed))
        parts = torch.split(draw.double(), d + 1, 1)
        self.directions = torch.cat([torch.linalg.qr(part).Q for part in parts], 1).float()
        # [B, H, n, m·L] projections before the division by c; then [B, H, n]
        self.raw = self.square = self.highest = torch.empty(0)

    def add(self, key: Tensor) -> None:
        key = key.float()
        self.directions = self.directions.to(key.device)
        square = key.square().sum(-1)
        highest = square.cummax(-1).values
        if self.highest.numel():
            highest = highest.maximum(self.highest[..., -1:])
        self.raw = _append(self.raw, key @ self.directions[:-1])
        self.square = _append(self.square, square)
        self.highest = _append(self.highest, highest)

    def candidates(self, query: Tensor, seen: Tensor, k: int) -> Tensor:
        c, lists = self.bounds(seen), self.query_lists(query)
        n = int(seen.max())
        hidden = _unseen(seen, n)
        k0, k1 = self.retrieved(seen, k), (seen * self.m).clamp(max=self.k1 or FAR)
        found = []
        for rows in _constant(c):
            keys = self.key_lists(c[:, :, rows.start], n).unflatten(2, (self.L, self.m))
            near = lists[:, :, rows].unflatten(3, (self.L, self.m))
            union = torch.zeros(1, dtype=torch.bool, device=query.device)
            for index in range(self.L):
                difference = (keys[:, :, index, :, None] - near[..., index, :].mT[..., None]).abs()
                difference = difference.masked_fill(hidden[rows], FAR)
                largest = difference.amax(2)
                reach = _smallest(largest, k0[rows])
                if self.k1 is not None:
                    visited = difference.movedim(2, 3).flatten(3)
                    reach = reach.minimum(_smallest(visited, k1[rows]))
                union = union | (largest <= reach)
            found.append(union & ~hidden[rows])
        return torch.cat(found, 2)

    def native(self, reads: Reads) -> tuple[Tensor, Tensor] | str:
        if self.k1 is not None or reads.bias is not None:
            return "k1 is given" if self.k1 is not None else "a bias on scores"
        self.add(reads.key)
        c, lists = self.bounds(reads.seen), self.query_lists(reads.query)
        outputs, ids = [], []
        for rows in _constant(c):
            seen = reads.seen[rows]
            n = max(int(seen[-1]), 1)
            done = kernels.dci(
                reads.query[:, :, rows],
                reads.key[:, :, :n],
                reads.value[:, :, :n],
                reads.scale,
                reads.k,
                seen,
                self.key_lists(c[:, :, rows.start], n).unflatten(2, (self.L, self.m)),
                lists[:, :, rows].unflatten(3, (self.L, self.m)),
                self.retrieved(seen, reads.k),
            )
            if isinstance(done, str):
                self.raw = self.square = self.highest = torch.empty(0)
                return done
            outputs.append(done[0])
            ids.append(done[1])
        return torch.cat(outputs, 2), torch.cat(ids, 2)

    def retrieved(self, seen: Tensor, k: int) -> Tensor:
        """k0 for each query, [q] int64; enough for k."""
        k0 = seen * self.k0 if self.k0 < 1 else torch.full_like(seen, int(self.k0))
        return k0.ceil().long().clamp(min=k).minimum(seen)

    def bounds(self, seen: Tensor) -> Tensor:
        """c for each query, [B, H, q]: the lowest power of √2 above the norms of the keys seen.
        So c seldom grows as keys are added, and all projections with it."""
        highest = self.highest[:, :, (seen - 1).clamp(min=0)].clamp(min=TINY)
        return torch.exp2(highest.log2().ceil() / 2)

    def key_lists(self, c: Tensor, n: int) -> Tensor:
        """int16 [B, H, m·L, n] in -127 … 127: the first n keys under T_K with c [B, H]."""
        rest = (1 - self.square[:, :, :n] / c[..., None].square()).clamp(min=0).sqrt()
        projected = self.raw[:, :, :n] / c[..., None, None] + rest[..., None] * self.directions[-1]
        return self._eight_bits(projected).mT

    def query_lists(self, query: Tensor) -> Tensor:
        """int16 [B, H, q, m·L] in -127 … 127: queries under T_Q."""
        return self._eight_bits(embed_queries(query.float()) @ self.directions)

    def _eight_bits(self, projected: Tensor) -> Tensor:
        step = REACH / math.sqrt(self.d + 1) / 127
        return (projected / step).round_().clamp_(-127, 127).to(torch.int16)


class Quantized:
    """Inner products of 8-bit numbers, each query and key with a scale of its own. A key is
    measured from the mean of its block of 64, in which a key far above the others weighs no more
    than they do. Keys of blocks that a query sees only in part are all candidates: so no mean
    tells of keys that the query doesn't see."""

    def __init__(self) -> None:
        self.near = self.mean = self.rest = torch.empty(0)

    def add(self, key: Tensor) -> None:
        keys = _append(self.rest, key.float())
        whole = keys.shape[2] // BLOCK * BLOCK
        self.rest = keys[:, :, whole:]
        if not whole:
            return
        blocks = keys[:, :, :whole].unflatten(2, (-1, BLOCK))
        size = blocks.abs().amax(4, keepdim=True)
        weight = 1 / size.maximum(size.mean(3, keepdim=True) / 8).clamp(min=TINY)
        mean = (weight * blocks).sum(3) / weight.sum(3)
        blocks = blocks - mean[:, :, :, None]
        scale = blocks.abs().amax(4, keepdim=True).clamp(min=TINY) / 127
        self.near = _append(self.near, ((blocks / scale).round() * scale).flatten(2, 3))
        self.mean = _append(self.mean, mean)

    def candidates(self, query: Tensor, seen: Tensor, k: int) -> Tensor | None:
        n = int(seen.max())
        wanted = rescored(k)
        if n <= max(wanted, BLOCK) or not self.near.numel():
            return None
        query = query.float()
        scale = query.abs().amax(-1, keepdim=True).clamp(min=TINY) / 127
        rounded = (query / scale).round() * scale
        whole = min(n // BLOCK * BLOCK, self.near.shape[2])
        scores = rounded @ self.near[:, :, :whole].mT
        scores += (query @ self.mean[:, :, : whole // BLOCK].mT).repeat_interleave(BLOCK, -1)
        in_part = _unseen(seen // BLOCK * BLOCK, whole)
        scores.masked_fill_(in_part, -math.inf)
        floor = scores.topk(min(wanted, whole)).values[..., -1:]
        chosen = (scores >= floor) | in_part
        return torch.nn.functional.pad(chosen, (0, n - whole), value=True)

    def native(self, reads: Reads) -> tuple[Tensor, Tensor] | str:
        if reads.bias is not None:
            return "a bias on scores"
        return kernels.topk(
            reads.query, reads.key, reads.value, reads.scale, reads.k, rescored(reads.k), reads.seen
        )


def rescored(k: int) -> int:
    """How many keys `Quantized` hands on for exact scores, so that none of the best k is lost."""
    return k + k // 4 + 8


def _unseen(seen: Tensor, n: int) -> Tensor:
    """[q, n], True where a key comes after those that are seen."""
    return torch.arange(n, device=seen.device) >= seen[:, None]


def _append(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat((old, new), 2) if old.numel() else new


def _constant(c: Tensor) -> list[slice]:
    """The longest slices of the last dimension in which nothing changes."""
    changes = (c[..., 1:] != c[..., :-1]).flatten(0, -2).any(0).nonzero()[:, 0] + 1
    edges = [0, *changes.tolist(), c.shape[-1]]
    return [slice(a, b) for a, b in pairwise(edges)]


def _smallest(difference: Tensor, count: Tensor) -> Tensor:
    """The smallest t with at least count [q] numbers ≤ t in each row of [B, H, q, j]: [B, H, q, 1].
    The numbers are 0 … 254, so that eight halvings find it."""
    low = torch.full_like(difference[..., :1], -1)
    high = torch.full_like(low, 255)
    for _ in range(8):
        middle = (low + high) // 2
        enough = (difference <= middle).sum(-1, keepdim=True) >= count[:, None]
        high, low = torch.where(enough, middle, high), torch.where(enough, low, middle)
    return high
