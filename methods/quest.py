"""Quest (Tang et al., arXiv 2406.10774, §3): a new token reads the pages of keys that may matter.

All entries are kept. Of each page of keys the smallest and the largest number in every channel are
kept too; with a query they bound the score of any key of the page (algorithm 1). A new token reads
the pages with the highest bounds, of keys and values, and 2/page of all keys for the bounds. The
prompt is read exactly, and so is everything in the first layers (§3.3).

Differs from the official code: as many pages as hold the budget (there a page that the budget fills
in part is left out, so that no budget reads all); a row's pages begin at its first token. Official
pages are chosen by each query head, in models whose heads share no keys; `share` says what happens
where they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import AttentionCall, Workload
from methods.parts.budget import entries
from methods.parts.kv_cache import BLOCK, Storage
from methods.parts.parameters import NonNegative, Positive
from methods.parts.sparse_reading import LayerEntries, Prompt, SparseReading, best

LEAST = 3
"""Pages that are read in any case, as in the official code."""


@dataclass(frozen=True)
class Quest(SparseReading):
    """budget        entries that a new token reads in each KV head of a layer (`parts.budget`; the
                  paper's are 256 to 4,096 of up to 32,768 tokens); all of them are kept
    page          tokens in a page
    dense_layers  layers at the start that are read exactly
    share         query heads with the same keys choose pages together by their mean bound, "group",
                  or each its own, "head", which together read more than the budget
    newest        the page of the new token is "ranked" as any other, or always "read", as by the
                  official kernels
    """

    page: Positive = 16
    dense_layers: NonNegative = 2
    share: Literal["group", "head"] = "group"
    newest: Literal["ranked", "read"] = "ranked"

    def layer(self, index: int, prompt: Prompt) -> LayerEntries:
        return LayerEntries(prompt) if index < self.dense_layers else Paged(self, prompt)

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
    numbers and then the smallest."""

    def __init__(self, method: Quest, prompt: Prompt) -> None:
        self.method, size = method, method.page
        firsts = prompt.first.tolist()
        rows = [key[:, first:] for key, first in zip(prompt.key, firsts, strict=True)]
        count = -(-max(row.shape[1] for row in rows) // size)
        bounds = prompt.key.new_zeros(*prompt.key.shape[:2], count, 2 * prompt.key.shape[3])
        for row, key in zip(bounds, rows, strict=True):
            ends = (0, 0, 0, -key.shape[1] % size)
            highest = pad(key, ends, value=-torch.inf).unflatten(1, (-1, size)).amax(2)
            lowest = pad(key, ends, value=torch.inf).unflatten(1, (-1, size)).amin(2)
            row[:, : highest.shape[1]] = torch.cat((highest, lowest), 2)
        self.bounds = Storage([bounds], -(-BLOCK // size))
        super().__init__(prompt)

    def held(self) -> list[Tensor]:
        return super().held() + self.bounds.held()

    def step(self, query: Tensor, call: AttentionCall) -> Tensor:
        newest = self.seen - 1 - self.first  # numbers in the rows
        self._bound(self.key[:, :, -1], newest)
        size, last = self.method.page, newest // self.method.page
        scores = self._scores(query, last)
        needed = (-(-self.budget // size)).clamp(min=LEAST).minimum(last + 1)
        pages, chosen = best(scores, needed)
        place = pages[..., None] * size + torch.arange(size, device=pages.device)
        exists = (place <= newest[:, None, None, None]) & chosen[..., None]
        self._count(pages.where(chosen, pages[..., :1]), newest, last)
        place = (place + self.first[:, None, None, None]).flatten(2)
        grouped = query.view(*pages.shape[:2], -1, query.shape[3])
        return self.attend_at(grouped, place, exists.flatten(2), call.scale).view_as(query)

    def _bound(self, key: Tensor, newest: Tensor) -> None:
        """Takes the newest key [B, G, d] into the bounds of its page."""
        page, twice = newest // self.method.page, torch.cat((key, key), 2)
        if int(page.max()) == self.bounds.size:
            self.bounds.add(torch.zeros_like(twice)[:, :, None])
        bounds, rows = self.bounds.parts()[0], torch.arange(len(page), device=page.device)
        highest, lowest = bounds[rows, :, page].chunk(2, 2)
        wider = torch.cat((highest.maximum(key), lowest.minimum(key)), 2)
        opens = (newest % self.method.page == 0)[:, None, None]
        bounds[rows, :, page] = twice.where(opens, wider)

    def _scores(self, query: Tensor, last: Tensor) -> Tensor:
        """[B, G or H, pages]: the bounds of the scores, -inf after each row's last page."""
        query = query.unflatten(1, (self.key.shape[1], -1))[:, :, :, 0]
        signs = torch.cat((query.clamp(min=0), query.clamp(max=0)), 3)
        (bounds,) = self.bounds.parts()
        scores = signs @ bounds.mT
        scores = scores.mean(2) if self.method.share == "group" else scores.flatten(1, 2)
        page = torch.arange(bounds.shape[2], device=query.device)
        if self.method.newest == "read":
            scores = scores.masked_fill((page == last[:, None])[:, None], torch.inf)
        return scores.masked_fill((page > last[:, None])[:, None], -torch.inf)

    def _count(self, pages: Tensor, newest: Tensor, last: Tensor) -> None:
        """Counts the bounds of all pages, and the entries of those that any query head of a group
        reads [B, G or H, k]."""
        batch, heads, _, width = self.key.shape
        page = torch.arange(self.bounds.size, device=pages.device)
        entries = (newest[:, None] + 1 - page * self.method.page).clamp(0, self.method.page)
        taken = torch.zeros(batch, heads, len(page), dtype=torch.bool, device=pages.device)
        taken.scatter_(2, pages.reshape(batch, heads, -1), True)
        numbers = int((taken * entries[:, None]).sum()) + heads * int((last + 1).sum())
        self.read += 2 * width * numbers * self.key.element_size()
