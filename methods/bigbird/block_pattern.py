"""Which blocks of keys each block of queries attends to in BigBird (arXiv 2007.14062, §2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from methods import kernels
from methods.parts.workload import Unsupported


@dataclass(frozen=True)
class BlockGrid:
    """Blocks 0 … blocks-1: first … stop-1 are sparse, the others global."""

    blocks: int
    first: int
    stop: int

    @property
    def outside(self) -> int:
        """How many blocks are global."""
        return self.blocks - (self.stop - self.first)


@dataclass(frozen=True)
class BlockLayout:
    """Which blocks attend to which; numbered over rows and heads: (row·H + head)·blocks + i.

    global_blocks  [B·H, global blocks]
    groups         (queries [P], keys [P, R]): sparse blocks with the same number of key blocks
    order          [B·H·blocks]: where each block is among the global ones and the groups,
                   concatenated
    """

    global_blocks: Tensor
    groups: list[tuple[Tensor, Tensor]]
    order: Tensor

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The groups in chunks whose keys stay in a core's cache; on a GPU, chunks are larger."""
        size = 8 * torch.get_num_threads() if self.order.device.type == "cpu" else 1024
        for queries, keys in self.groups:
            yield from zip(torch.split(queries, size), torch.split(keys, size), strict=True)


@dataclass(frozen=True)
class BlockPattern:
    """The parameters of a pattern: see `methods.bigbird.bigbird.BigBird`."""

    block_size: int
    window: int
    random: int
    random_region: str
    multiplicity: str
    seed: int

    def table(self, grid: BlockGrid, heads: int, layer: int) -> Tensor:
        """[H, sparse blocks, R] int64: the key blocks of each sparse block, in rising order; a row
        with fewer than R is filled up with `grid.blocks`."""
        rows = torch.arange(grid.first, grid.stop)
        every = torch.arange(grid.blocks)
        shared = torch.cat((every[: grid.first], every[grid.stop :])).expand(len(rows), -1)
        half = self.window // 2
        window = rows[:, None] + torch.arange(-half, half + 1)
        outside = (window < grid.first) | (window >= grid.stop)
        fixed = torch.cat((shared, window.masked_fill(outside, grid.blocks)), 1)
        fixed = fixed.expand(heads, -1, -1)
        drawn = self._draw(grid, window, heads, layer)
        if self.multiplicity == "once":
            duplicate = (drawn[..., None] == fixed[..., None, :]).any(-1)
            drawn = drawn.masked_fill(duplicate, grid.blocks)
        return torch.cat((fixed, drawn), -1).sort(-1).values

    def _draw(self, grid: BlockGrid, window: Tensor, heads: int, layer: int) -> Tensor:
        """[H, sparse blocks, r]: distinct blocks from first … last, outside the window."""
        r, last = self.random, grid.stop - 1
        excluded = window
        if self.random_region == "official":
            last = 2 * r + 3
            if grid.blocks * self.block_size in (1024, 2048, 3072, 4096):
                last = 1024 // self.block_size - 1
            else:
                ends = torch.full_like(window[:, :1], -1)  # the official code leaves out two blocks
                ends[0], ends[last - 1] = last, 1
                excluded = torch.cat((window, ends), 1)
        beyond = 2 * grid.blocks
        excluded = excluded.masked_fill((excluded < grid.first) | (excluded > last), beyond)
        excluded = excluded.sort(1).values
        left = last - grid.first + 1 - (excluded < beyond).sum(1)
        if r and int(left.min()) < r:
            raise Unsupported(f"a block has {int(left.min())} others to draw from; random is {r}")
        generator = torch.Generator().manual_seed((self.seed << 20) + layer)
        drawn: list[Tensor] = []
        for top in (left - r + j for j in range(r)):  # Floyd's sampling: r of `left`, all distinct
            number = (
                torch.rand(heads, len(window), generator=generator, dtype=torch.float64) * (top + 1)
            ).long()
            taken = (
                torch.stack([number == other for other in drawn]).any(0) if drawn else number < 0
            )
            drawn.append(torch.where(taken, top, number))
        block = torch.stack(drawn, -1) if drawn else torch.zeros(heads, len(window), 0).long()
        block = block + grid.first
        for column in excluded.T:  # number i is the i-th block that is not excluded
            block = block + (block >= column[:, None])
        return block


@lru_cache(maxsize=256)
def layout_of(
    pattern: BlockPattern,
    grid: BlockGrid,
    batch: int,
    heads: int,
    layer: int,
    device: torch.device,
) -> BlockLayout:
    """The pattern of one layer, for the torch path."""
    table = pattern.table(grid, heads, layer)
    first = torch.arange(batch * heads)[:, None] * grid.blocks  # of each (row, head)
    every = torch.arange(grid.blocks)
    sparse = (every >= grid.first) & (every < grid.stop)
    global_blocks, queries = first + every[~sparse], (first + every[sparse]).flatten()
    keys = (first[:, :, None] + table.repeat(batch, 1, 1)).flatten(0, 1)
    count = (table < grid.blocks).sum(-1).repeat(batch, 1).flatten()
    groups = [(queries[count == c], keys[count == c][:, :c]) for c in torch.unique(count).tolist()]
    order = torch.cat([global_blocks.flatten(), *(chosen for chosen, _ in groups)]).argsort()
    return BlockLayout(
        global_blocks.to(device),
        [(chosen.to(device), read.contiguous().to(device)) for chosen, read in groups],
        order.to(device),
    )


@lru_cache(maxsize=256)
def lists_of(pattern: BlockPattern, grid: BlockGrid, heads: int, layer: int) -> kernels.Blocks:
    """The pattern of one layer, for the native kernel."""
    every = list(range(grid.blocks))
    before, after = [every] * grid.first, [every] * (grid.blocks - grid.stop)
    table = pattern.table(grid, heads, layer).tolist()
    rows = [[[key for key in keys if key < len(every)] for keys in head] for head in table]
    return kernels.Blocks.of([before + row + after for row in rows], pattern.block_size)
