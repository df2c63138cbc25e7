"""Which blocks of keys each block of queries reads in BigBird (arXiv 2007.14062, §2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from methods import kernels
from methods.base import Unsupported

if TYPE_CHECKING:
    from methods.bigbird import BigBird


@dataclass(frozen=True)
class Grid:
    """Blocks 0 … blocks-1, of which first … stop-1 are sparse and the others global."""

    blocks: int
    first: int
    stop: int

    @property
    def outside(self) -> int:
        return self.blocks - (self.stop - self.first)


@dataclass(frozen=True)
class Layout:
    """Who reads whom; blocks are numbered over rows and heads: (row·H + head)·blocks + i.

    shared  [B·H, global blocks]: the global blocks
    groups  (queries [P], keys [P, R]): sparse blocks that read equally many blocks
    order   [B·H·blocks]: where each block is among shared and groups, laid end to end
    """

    shared: Tensor
    groups: list[tuple[Tensor, Tensor]]
    order: Tensor

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups, cut to sizes whose keys stay in a core's cache; a GPU wants many at a time."""
        size = 8 * torch.get_num_threads() if self.order.device.type == "cpu" else 1024
        for queries, keys in self.groups:
            yield from zip(torch.split(queries, size), torch.split(keys, size), strict=True)


@lru_cache(maxsize=256)
def layout_of(
    method: BigBird, grid: Grid, batch: int, heads: int, layer: int, device: torch.device
) -> Layout:
    table = table_of(method, grid, heads, layer)
    first = torch.arange(batch * heads)[:, None] * grid.blocks  # of each row and head
    every = torch.arange(grid.blocks)
    sparse = (every >= grid.first) & (every < grid.stop)
    shared, queries = first + every[~sparse], (first + every[sparse]).flatten()
    keys = (first[:, :, None] + table.repeat(batch, 1, 1)).flatten(0, 1)
    count = (table < grid.blocks).sum(-1).repeat(batch, 1).flatten()
    groups = [(queries[count == c], keys[count == c][:, :c]) for c in torch.unique(count).tolist()]
    order = torch.cat([shared.flatten(), *(chosen for chosen, _ in groups)]).argsort()
    return Layout(
        shared.to(device),
        [(chosen.to(device), read.contiguous().to(device)) for chosen, read in groups],
        order.to(device),
    )


@lru_cache(maxsize=256)
def lists_of(method: BigBird, grid: Grid, heads: int, layer: int) -> kernels.Blocks:
    """The same for the native kernel."""
    every = list(range(grid.blocks))
    before, after = [every] * grid.first, [every] * (grid.blocks - grid.stop)
    table = table_of(method, grid, heads, layer).tolist()
    rows = [[[key for key in keys if key < len(every)] for keys in head] for head in table]
    return kernels.Blocks.of([before + row + after for row in rows], method.block_size)


def table_of(method: BigBird, grid: Grid, heads: int, layer: int) -> Tensor:
    """[H, sparse blocks, R] int64: the key blocks that each reads, rising; where there are fewer
    than R, `grid.blocks` fills the end."""
    rows = torch.arange(grid.first, grid.stop)
    every = torch.arange(grid.blocks)
    shared = torch.cat((every[: grid.first], every[grid.stop :])).expand(len(rows), -1)
    half = method.window // 2
    window = rows[:, None] + torch.arange(-half, half + 1)
    outside = (window < grid.first) | (window >= grid.stop)
    fixed = torch.cat((shared, window.masked_fill(outside, grid.blocks)), 1).expand(heads, -1, -1)
    drawn = _draw(method, grid, window, heads, layer)
    if method.multiplicity == "once":
        again = (drawn[..., None] == fixed[..., None, :]).any(-1)
        drawn = drawn.masked_fill(again, grid.blocks)
    return torch.cat((fixed, drawn), -1).sort(-1).values


def _draw(method: BigBird, grid: Grid, window: Tensor, heads: int, layer: int) -> Tensor:
    """[H, sparse blocks, r]: different blocks from first … last, outside the window."""
    r, last = method.random, grid.stop - 1
    never = window
    if method.random_region == "official":
        last = 2 * r + 3
        if grid.blocks * method.block_size in (1024, 2048, 3072, 4096):
            last = 1024 // method.block_size - 1
        else:
            ends = torch.full_like(window[:, :1], -1)  # two that the official code leaves out
            ends[0], ends[last - 1] = last, 1
            never = torch.cat((window, ends), 1)
    beyond = 2 * grid.blocks
    never = never.masked_fill((never < grid.first) | (never > last), beyond).sort(1).values
    left = last - grid.first + 1 - (never < beyond).sum(1)
    if r and int(left.min()) < r:
        raise Unsupported(f"a block has {int(left.min())} others to draw from; random is {r}")
    make = torch.Generator().manual_seed((method.seed << 20) + layer)
    drawn: list[Tensor] = []
    for top in (left - r + j for j in range(r)):  # Floyd's: r of `left` numbers, none twice
        number = (
            torch.rand(heads, len(window), generator=make, dtype=torch.float64) * (top + 1)
        ).long()
        taken = torch.stack([number == other for other in drawn]).any(0) if drawn else number < 0
        drawn.append(torch.where(taken, top, number))
    block = torch.stack(drawn, -1) if drawn else torch.zeros(heads, len(window), 0).long()
    block = block + grid.first
    for column in never.T:  # number i is the i-th block that isn't left out
        block = block + (block >= column[:, None])
    return block
