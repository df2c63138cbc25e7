"""A decoder's cache that keeps all keys and values; a new token reads some of them.

Shapes: B batch, G key heads, H query heads, n tokens so far, d head size. An entry's index is its
token's number; a row's padding comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import AttentionCall, Workload
from methods.parts.kv_cache import CacheMethod, Entries
from methods.parts.parameters import Budget, entries, shortage


@dataclass(frozen=True)
class SparseReading(CacheMethod):
    """budget   entries that a new token reads in each KV head of a layer (`Budget`; a share
             is of the prompt); all entries are kept
    several  "sparse": several new tokens at once, such as a question after the prompt, are read
             sparsely, one by one. None: exactly, as in the methods' official code
    kernel   "native": the kernel of methods/kernels reads entries in place; "torch": torch copies
             the entries that are read; "auto": native where it can run
    """

    budget: Budget = 0.25
    several: Literal["sparse"] | None = field(default=None, kw_only=True)
    kernel: kernels.Kernel = field(default="auto", kw_only=True)
    kernel_used: ClassVar[str] = ""  # type: ignore[assignment]

    def layer(self, index: int, prompt: Prompt) -> LayerEntries:
        """The entries of one layer, which its new tokens read."""
        raise NotImplementedError

    def least(self) -> int:
        """The fewest entries with which the method works."""
        return 1

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return entries(self.budget, workload, workload.length) >= workload.length

    def kv_cache(self, workload: Workload) -> SparselyReadCache:
        return SparselyReadCache(self, workload)

    def unsupported(self, workload: Workload) -> str | None:
        reason = super().unsupported(workload)
        return reason or shortage(self.budget, workload, self.least())


@dataclass(frozen=True)
class Prompt:
    """The inputs of a layer's entries: keys and values [B, G, n, d]; [B] the number of each row's
    first token; [B] the number of entries that a new token of the row may read."""

    key: Tensor
    value: Tensor
    first: Tensor
    budget: Tensor


class LayerEntries(Entries):
    """All keys and values of one layer, read exactly.

    first   number of each row's first token
    budget  entries that a new token of each row may read
    read    bytes that new tokens have read so far
    """

    def __init__(self, method: SparseReading, prompt: Prompt) -> None:
        super().__init__(prompt.key, prompt.value)
        self.method = method
        self.first: list[int] = prompt.first.tolist()
        self.budget: list[int] = prompt.budget.tolist()
        self.read = 0

    def tokens(self) -> list[int]:
        """Tokens of each row so far."""
        return [self.seen - first for first in self.first]

    def of_rows(self, numbers: Sequence[int]) -> Tensor | int:
        """A number for each row, [B, 1, 1]; one int where all are equal, which needs no tensor."""
        if len(set(numbers)) == 1:
            return numbers[0]
        return torch.tensor(numbers, device=self.key.device)[:, None, None]

    def take(self, key: Tensor, value: Tensor) -> None:
        """Adds the next tokens' keys and values [B, G, t, d], and updates the data that choose
        entries."""
        self.append(key, value)

    def exactly(self, query: Tensor, call: AttentionCall) -> Tensor:
        """The exact attention of the newest t tokens, which have been added: query [B, H, t, d] →
        [B, H, t, d]."""
        self.read += self.bytes() // (self.seen * len(self.first)) * sum(self.tokens())
        return self.attend(query, call)

    def step(self, query: Tensor, call: AttentionCall) -> Tensor:
        """The attention of the newest token, which has been added: query [B, H, 1, d] →
        [B, H, 1, d]."""
        return self.exactly(query, call)

    def best(self, scores: Tensor, counts: Sequence[int]) -> Tensor:
        """The indices [B, S, k] of the largest scores [B, S, m], `counts` of them in each row: the
        largest first, or in any order where all rows have k. The rest of a row is m."""
        count, most = self.of_rows(counts), max(counts)
        if isinstance(count, int):
            return scores.topk(most, sorted=False).indices  # sorting takes most of the time
        behind = torch.arange(most, device=scores.device) >= count
        return scores.topk(most).indices.masked_fill(behind, scores.shape[2])

    def attend_at(self, query: Tensor, place: Tensor, read: Tensor, scale: float) -> Tensor:
        """Attention of the newest token to the entries at `place` that are `read`, [B, S, k]; the
        first always is: query [B, S, g, d] → [B, S, g, d]. S is the number of key heads, with g
        query heads each, or the number of query heads."""
        place = place.where(read, place[..., :1])  # entries that aren't read aren't loaded
        key, value = self._parts[:2]
        scores = self.natively(kernels.row_scores, query, key, place)
        if isinstance(scores, str):
            key, value = rows_at(key, place), rows_at(value, place)
            return scaled_dot_product_attention(query, key, value, read[:, :, None], scale=scale)
        scores = (scores * scale).masked_fill_(~read[:, :, None], -torch.inf)
        return self.sums_at(scores.softmax(-1), value, place).to(query.dtype)

    def sums_at(self, weights: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """Sums of the rows of x [B, G, m, w] at `place` [B, S, k], weighted by [B, S, q, k] →
        [B, S, q, w]."""
        sums = self.natively(kernels.row_sums, weights, x, place)
        return weights.to(x.dtype) @ rows_at(x, place) if isinstance(sums, str) else sums

    def natively(self, function: Callable[..., Tensor | str], *given: Tensor) -> Tensor | str:
        """The result of a function of `methods.kernels`, or the reason why torch computes
        instead."""
        found = kernels.ASKED if self.method.kernel == "torch" else function(*given)
        kernels.note(self.method, found)
        return found


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """The rows of x [B, G, m, d] at `index` [B, S, k], for each of G heads or of S that share them
    → [B, S, k, d]. Copies whole rows: `gather` needs an index for each number."""
    batch, heads, m, _ = x.shape
    first = torch.arange(0, batch * heads * m, m, device=x.device).view(batch, heads, 1)
    if index.shape[1] > heads:
        first = first.repeat_interleave(index.shape[1] // heads, 1)
    return x.flatten(0, 2).index_select(0, (first + index).flatten()).view(*index.shape, -1)


class SparselyReadCache:
    """The cache of a `SparseReading` method."""

    def __init__(self, method: SparseReading, workload: Workload) -> None:
        self.method, self.workload = method, workload
        self.layers: dict[int, LayerEntries] = {}

    @property
    def read_bytes(self) -> int:
        return sum(layer.read for layer in self.layers.values())

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        valid = call.sequence.valid
        lengths = [key.shape[2]] * len(key) if valid is None else valid.sum(1).tolist()
        budget = [entries(self.method.budget, self.workload, n) for n in lengths]
        first, most = (
            torch.tensor(x, device=key.device)
            for x in ([key.shape[2] - n for n in lengths], budget)
        )
        prompt = Prompt(key, value, first, most)
        self.layers[call.layer] = self.method.layer(call.layer, prompt)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        layer, outputs = self.layers[call.layer], []
        if query.shape[2] > 1 and self.method.several is None:
            layer.take(key, value)
            return layer.exactly(query, call)
        for q, k, v in zip(*(x.split(1, 2) for x in (query, key, value)), strict=True):
            layer.take(k, v)
            outputs.append(layer.step(q, call))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)

    def held(self) -> Sequence[Tensor]:
        return [part for layer in self.layers.values() for part in layer.held()]
