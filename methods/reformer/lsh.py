"""One round of Reformer's attention: tokens sorted by their hashes, in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import AttentionCall
from methods.parts.attention import positions_of

Pair = tuple[Tensor, Tensor]


@lru_cache(maxsize=64)
def rotations(size: tuple[int, ...], seed: int) -> Tensor:
    """Normal random numbers of this size, float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Chunks:
    """The tokens of every chunk, and the tokens that it reads, for each row and head; -1: none.

    queries  [B, H, C, chunk]
    keys     [B, H, C, 2 chunk], those of the previous chunk (cyclic) and its own; a single chunk
             has only its own
    """

    queries: Tensor
    keys: Tensor

    @classmethod
    def of(cls, order: Tensor, chunk: int) -> Chunks:
        """order [B, H, n]: the sorted tokens."""
        missing = -order.shape[2] % chunk
        queries = pad(order, (0, missing), value=-1).unflatten(2, (-1, chunk))
        if queries.shape[2] == 1:
            return cls(queries, queries)
        return cls(queries, torch.cat((queries.roll(1, 2), queries), 3))

    def after(self, other: Chunks) -> Chunks:
        """The same chunks, but the first reads the last chunk of `other` instead of this round's
        last."""
        if self.count == 1:
            return self
        keys = self.keys.clone()
        keys[:, :, 0, : other.queries.shape[3]] = other.queries[:, :, -1]
        return Chunks(self.queries, keys)

    @property
    def count(self) -> int:
        return self.queries.shape[2]

    def of_queries(self, x: Tensor) -> Tensor:
        """[B, H, n, …] → [B, H, C, chunk, …]"""
        return _gathered(x, self.queries)

    def of_keys(self, x: Tensor) -> Tensor:
        """[B, H, n, …] → [B, H, C, 2 chunk, …]"""
        return _gathered(x, self.keys)

    def pairs(self, x: Tensor) -> Pair:
        """A number of each token [B, H, n], shaped for comparison: [B, H, C, chunk, 1] and [B, H,
        C, 1, 2 chunk]."""
        return self.of_queries(x)[..., :, None], self.of_keys(x)[..., None, :]

    def in_bucket(self, buckets: Tensor) -> Tensor:
        """[B, H, C, chunk, 2 chunk]: whether both tokens of a pair are in one bucket, in a round
        with these buckets [B, H, n]."""
        query, key = self.pairs(buckets)
        return query == key

    def in_reach(self, places: Tensor) -> Tensor:
        """[B, H, C, chunk, 2 chunk]: whether a pair's key is in the query's chunk or the previous
        one, in a round with these chunks [B, H, n]."""
        query, key = self.pairs(places)
        return (query == key) | ((query - 1) % self.count == key)

    def bias(self, call: AttentionCall, like: Tensor) -> Tensor:
        """The call's bias on scores, broadcastable to [B, H, C, chunk, 2 chunk]; like: [B, H, n,
        d]."""
        (batch, heads, n, _), counts = like.shape, call.sequence.log_multiplicity
        bias = like.new_zeros(())
        if counts is not None:
            bias = self.of_keys(counts[:, None].expand(-1, heads, -1).to(like))[..., None, :]
        if call.bias is not None:
            positions = positions_of(call.sequence, n, like.device)[0]
            positions = positions - positions.amin(1, keepdim=True)
            diagonals = call.bias.diagonals(int(positions.max()) + 1).to(like.dtype)
            query, key = self.pairs(positions[:, None].expand(batch, heads, n))
            span = diagonals.shape[1]
            head = torch.arange(heads, device=like.device).view(-1, 1, 1, 1)
            index = key - query + span // 2 + head * span
            bias = bias + diagonals.flatten()[index.flatten()].view(index.shape)
        return bias


def _gathered(x: Tensor, tokens: Tensor) -> Tensor:
    index = tokens.clamp(min=0).flatten(2)
    if x.dim() == 4:
        index = index[..., None].expand(-1, -1, -1, x.shape[3])
    return x.gather(2, index).view(*tokens.shape, *x.shape[3:])
