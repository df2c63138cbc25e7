"""Quest (Tang et al., arXiv 2406.10774, §3): a new token reads the pages of keys that may have the
largest scores.

All entries are kept. For each page of keys, the smallest and the largest number of every channel
are kept too; with a query they bound the score of any key of the page (algorithm 1). A new token
reads the pages with the highest bounds, of keys and values, and 2/page of all keys for the bounds.
The prompt is read exactly, and so is everything in the first layers (§3.3), and several new tokens
at once, such as a question after the prompt (`several`).

The page of the new token is always read, as by the official kernels. The paper's algorithm and the
official evaluation code rank it like any other (`newest="ranked"`), and may leave it out. On
English text, at a quarter of 1,024 tokens, that raised the loss by .49, and always reading it by
.22 (SmolLM2-135M, 255 tokens of one text).

Differs from the official code (mit-han-lab/Quest, MIT): a page that the budget fills in part is
read (there it is left out, so that no budget reads all entries); a row's pages begin at its first
token. Official pages are chosen by each query head: the kernels run models whose heads share no
keys, and the evaluation code, which also patches Mistral, repeats shared keys for each query head
(`repeat_kv`). That is share="head"; by default the heads of a group choose together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods import kernels
from methods.base import AttentionCall, Workload
from methods.parts.kv_cache import BLOCK, Storage
from methods.parts.parameters import NonNegative, Positive, entries
from methods.parts.sparse_reading import LayerEntries, Prompt, SparseReading

LEAST = 3
"""Pages that are read in any case, as in the official code."""


@dataclass(frozen=True)
class Quest(SparseReading):
    """budget        entries that a new token reads in each KV head of a layer (`Budget`; the
                  paper's are 256 to 4,096 of up to 32,768 tokens); all entries are kept
    page          tokens in a page
    dense_layers  layers at the start that are read exactly
    share         query heads with the same keys choose pages together by their mean bound
                  ("group"), or each for itself ("head"), and then together read more than the
                  budget
    newest        the page of the new token is always "read", as by the official kernels, or
                  "ranked" like any other
    """

    page: Positive = 16
    dense_layers: NonNegative = 2
    share: Literal["group", "head"] = "group"
    newest: Literal["ranked", "read"] = "read"

    def layer(self, index: int, prompt: Prompt) -> LayerEntries:
        return LayerEntries(self, prompt) if index < self.dense_layers else Paged(self, prompt)

    def least(self) -> int:
        return LEAST * self.page

    def unsupported(self, workload: Workload) -> str | None:
        if (reason := super().unsupported(workload)) or self.dense_layers < workload.layers:
            return reason
        return (
            f"dense_layers={self.dense_layers} leaves none of this model's {workload.layers} "
            "layers to be read sparsely: method.dense_layers=0 reads all of them so"
        )

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        pages = max(LEAST, -(-entries(self.budget, workload, workload.length) // self.page))
        return layer < self.dense_layers or pages * self.page >= workload.length

    def exact_limit(self) -> Quest:
        return replace(self, budget=4096, prefill=None)

    def scaled_down(self) -> Quest:
        return replace(self, budget=24, page=4, dense_layers=0)


class Paged(LayerEntries):
    """The entries of one layer and the bounds of their pages, [B, G, pages, 2d]: the largest
    numbers of the keys and of the keys times -1; the lowest number of the dtype where a row has no
    page."""

    method: Quest

    def __init__(self, method: Quest, prompt: Prompt) -> None:
        super().__init__(method, prompt)
        size = method.page
        numbers, lowest = _both_ways(prompt.key), torch.finfo(prompt.key.dtype).min
        count = -(-max(self.tokens()) // size)
        bounds = numbers.new_full((*numbers.shape[:2], count, numbers.shape[3]), lowest)
        for row, number, first in zip(bounds, numbers, self.first, strict=True):
            whole = pad(number[:, first:], (0, 0, 0, (first - self.seen) % size), value=lowest)
            highest = whole.unflatten(1, (-1, size)).amax(2)
            row[:, : highest.shape[1]] = highest
        self.bounds = Storage([bounds], -(-BLOCK // size))

    def held(self) -> list[Tensor]:
        return super().held() + self.bounds.held()

    def take(self, key: Tensor, value: Tensor) -> None:
        super().take(key, value)
        self._bound(key)

    def step(self, query: Tensor, call: AttentionCall) -> Tensor:
        size, tokens = self.method.page, self.tokens()
        pages = [-(-n // size) for n in tokens]
        wanted = (max(LEAST, -(-budget // size)) for budget in self.budget)
        page = self.best(self._scores(query, pages), [*map(min, wanted, pages)])
        place = (page[..., None] * size + torch.arange(size, device=page.device)).flatten(2)
        read = place < self.of_rows(tokens)
        self._count(page, tokens)
        grouped = query.view(*page.shape[:2], -1, query.shape[3])
        place = place + self.of_rows(self.first)
        return self.attend_at(grouped, place, read, call.scale).view_as(query)

    def _bound(self, key: Tensor) -> None:
        """Updates the bounds of each row's last pages with the newest keys [B, G, t, d]."""
        numbers, t, size = _both_ways(key), key.shape[2], self.method.page
        if (more := -(-max(self.tokens()) // size) - self.bounds.size) > 0:
            lowest = torch.finfo(key.dtype).min
            self.bounds.add(numbers.new_full((*key.shape[:2], more, numbers.shape[3]), lowest))
        (bounds,) = self.bounds.parts()
        for own, number, tokens in zip(bounds, numbers, self.tokens(), strict=True):
            for i in range(t):
                highest = own[:, (tokens - t + i) // size]
                torch.maximum(highest, number[:, i], out=highest)

    def _scores(self, query: Tensor, pages: Sequence[int]) -> Tensor:
        """[B, G or H, pages]: the bounds of the scores; the lowest number where a row has no
        page."""
        (bounds,) = self.bounds.parts()
        query = query.view(*bounds.shape[:2], -1, query.shape[3])
        query = _both_ways(query).clamp_(min=0)
        found = self.natively(kernels.row_scores, query, bounds)
        scores = query @ bounds.mT if isinstance(found, str) else found
        scores = scores.mean(2) if self.method.share == "group" else scores.flatten(1, 2)
        if self.method.newest == "read":
            page = torch.arange(1, bounds.shape[2] + 1, device=query.device)
            scores = scores.masked_fill(page == self.of_rows(pages), torch.inf)
        return scores

    def _count(self, page: Tensor, tokens: Sequence[int]) -> None:
        """Counts the bytes read: the bounds of all pages, and the entries of the pages [B, G or H,
        k] that any query head of a group reads."""
        (batch, heads, _, width), size = self.key.shape, self.method.page
        entries = (self.of_rows(tokens) - page * size).clamp(0, size)
        read = page.new_zeros(batch, heads, self.bounds.size + 1)
        read.scatter_(2, page.view(batch, heads, -1), entries.view(batch, heads, -1))
        bounds = sum(-(-n // size) for n in tokens)
        numbers = 2 * width * (int(read.sum()) + heads * bounds)
        self.read += numbers * self.key.element_size()


def _both_ways(x: Tensor) -> Tensor:
    """x [..., d] and -x → [..., 2d]."""
    return torch.cat((x, -x), -1)
