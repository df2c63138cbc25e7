"""Prioritized DCI (Li & Malik, arXiv 1703.00440), the search of IceFormer (algorithms 2 and 3).

It ranks keys by m·L random projections. A key enters S_l once all m lists of composite index l have
returned it, and the lists return keys in the order of |projection difference|. So S_l holds the k0
keys whose largest difference is smallest; they are computed here without lists. Projections are
stored in 8 bits, and keys that tie with the k0-th belong to S_l too.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from methods import kernels
from methods.iceformer.inputs import TopKInputs, append, unseen
from methods.iceformer.knn import Bias

Directions = Literal["independent", "orthogonal"]
REACH = 4.0  # projections of unit vectors are clamped to this many standard deviations
FAR = 255  # more than any difference of two projections
TINY = 1e-30


def embed_queries(query: Tensor) -> Tensor:
    """T_Q (eq. 4): [..., q, d] → unit vectors [..., q, d+1]."""
    norm = query.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(query.dtype).tiny)
    return torch.cat((query / norm, torch.zeros_like(norm)), -1)


def draw_directions(size: int, count: int, kind: Directions, seed: int) -> Tensor:
    """Random unit vectors [size, count]: independent (algorithm 2), or orthogonal as far as
    possible, which separates keys better."""
    draw = torch.randn(size, count, generator=torch.Generator().manual_seed(seed))
    if kind == "independent":
        return torch.nn.functional.normalize(draw, dim=0)
    parts = torch.split(draw.double(), size, 1)
    return torch.cat([torch.linalg.qr(part).Q for part in parts], 1).float()


class Dci:
    """Prioritized DCI: m simple indices in each of L composite ones, for keys of size d.

    k0    keys to retrieve in each composite index; below 1: a share of the keys seen
    k1    keys to visit in the lists of each, summed over lists; below 1: a share of all m·n visits;
          None: until k0 are retrieved
    kind  how the directions are drawn
    """

    def __init__(
        self, d: int, m: int, L: int, k0: float, k1: float | None, seed: int, kind: Directions
    ) -> None:
        self.d, self.m, self.L, self.k0, self.k1 = d, m, L, k0, k1
        # T_K adds the last of the d+1 coordinates.
        self.directions = draw_directions(d + 1, m * L, kind, seed)
        # [B, H, n, m·L] projections before the division by c; then [B, H, n]
        self.raw = self.square = self.highest = torch.empty(0)

    def add(self, key: Tensor) -> None:
        key = key.float()
        self.directions = self.directions.to(key.device)
        square = key.square().sum(-1)
        highest = square.cummax(-1).values
        if self.highest.numel():
            highest = highest.maximum(self.highest[..., -1:])
        self.raw = append(self.raw, key @ self.directions[:-1])
        self.square = append(self.square, square)
        self.highest = append(self.highest, highest)

    def held(self) -> list[Tensor]:
        return [self.raw, self.square, self.highest]

    def candidates(
        self, query: Tensor, seen: Tensor, k: int, scale: float = 1, bias: Bias | None = None
    ) -> Tensor:
        c, lists = self.bounds(seen), self.query_lists(query)
        n = int(seen.max())
        hidden = unseen(seen, n)
        k0, k1 = self.retrieved(seen, k), _amount(self.k1 or 1, seen * self.m)
        chosen = []
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
            chosen.append(union & ~hidden[rows])
        return torch.cat(chosen, 2)

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        if self.k1 is not None:
            return "k1 is given"
        bias = inputs.bias_by_distance()
        if isinstance(bias, str):
            return bias
        table, places = bias
        self.add(inputs.key)
        c, lists = self.bounds(inputs.seen), self.query_lists(inputs.query)
        outputs, ids = [], []
        for rows in _constant(c):
            seen = inputs.seen[rows]
            n = max(int(seen[-1]), 1)
            result = kernels.dci(
                inputs.query[:, :, rows],
                inputs.key[:, :, :n],
                inputs.value[:, :, :n],
                inputs.scale,
                inputs.k,
                seen,
                self.key_lists(c[:, :, rows.start], n).unflatten(2, (self.L, self.m)),
                lists[:, :, rows].unflatten(3, (self.L, self.m)),
                self.retrieved(seen, inputs.k),
                table,
                None if places is None else places[rows],
            )
            if isinstance(result, str):
                self.raw = self.square = self.highest = torch.empty(0)
                return result
            outputs.append(result[0])
            ids.append(result[1])
        if len(outputs) == 1:
            return outputs[0], ids[0]
        return torch.cat(outputs, 2), torch.cat(ids, 2)

    def retrieved(self, seen: Tensor, k: int) -> Tensor:
        """k0 for each query, [q] int64; at least k."""
        return _amount(self.k0, seen).clamp(min=k).minimum(seen)

    def bounds(self, seen: Tensor) -> Tensor:
        """c for each query, [B, H, q]: the smallest power of √2 that is at least the norm of every
        key seen. Rounding up to a power keeps c, and with it all projections, mostly unchanged as
        keys are added."""
        highest = self.highest[:, :, (seen - 1).clamp(min=0)].clamp(min=TINY)
        return torch.exp2(highest.log2().ceil() / 2)

    def key_lists(self, c: Tensor, n: int) -> Tensor:
        """int16 [B, H, m·L, n] in -127 … 127: projections of the first n keys under T_K (eq. 3),
        which divides by c [B, H] and adds a coordinate that makes the norm 1."""
        rest = (1 - self.square[:, :, :n] / c[..., None].square()).clamp(min=0).sqrt()
        projected = self.raw[:, :, :n] / c[..., None, None] + rest[..., None] * self.directions[-1]
        return self._eight_bits(projected).mT

    def query_lists(self, query: Tensor) -> Tensor:
        """int16 [B, H, q, m·L] in -127 … 127: projections of queries under T_Q (eq. 4)."""
        return self._eight_bits(embed_queries(query.float()) @ self.directions)

    def _eight_bits(self, projected: Tensor) -> Tensor:
        step = REACH / math.sqrt(self.d + 1) / 127
        return (projected / step).round_().clamp_(-127, 127).to(torch.int16)


def _amount(wanted: float, of: Tensor) -> Tensor:
    """`wanted`, or below 1 that share of each of `of` [q] int64; at most `of`."""
    share = (of * wanted).ceil().long() if wanted < 1 else torch.full_like(of, int(wanted))
    return share.minimum(of)


def _constant(c: Tensor) -> list[slice]:
    """The longest slices of the last dimension in which c is constant."""
    changes = (c[..., 1:] != c[..., :-1]).flatten(0, -2).any(0).nonzero()[:, 0] + 1
    edges = [0, *changes.tolist(), c.shape[-1]]
    return [slice(a, b) for a, b in pairwise(edges)]


def _smallest(difference: Tensor, count: Tensor) -> Tensor:
    """The smallest t with at least count [q] numbers ≤ t in each row of [B, H, q, j]: [B, H, q, 1].
    The numbers are 0 … 254, so a binary search takes eight steps."""
    low = torch.full_like(difference[..., :1], -1)
    high = torch.full_like(low, 255)
    for _ in range(8):
        middle = (low + high) // 2
        enough = (difference <= middle).sum(-1, keepdim=True) >= count[:, None]
        high, low = torch.where(enough, middle, high), torch.where(enough, low, middle)
    return high
