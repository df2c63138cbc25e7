"""BigBird (Zaheer et al., arXiv 2007.14062): a window, random blocks and global ones.

A block of queries reads its window of neighbours, r random blocks and the global blocks; those
read everything (§2, appendix D). Linear in n.
What transformers' version does and this doesn't: no random blocks outside training, n×n
probabilities, a global seed, full attention for good after one short input.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import Call, Layer, Method, Sequence, Shape, Unsupported
from methods.vanilla import exact_attention

REGIONS = ("uniform", "official")
MULTIPLICITIES = ("once", "counted")
CAUSAL = "BigBird reads encoders: its global blocks would show a causal model its future"


@dataclass(frozen=True)
class BigBird(Method):
    """BigBird-ITC: the sequence's own first and last blocks are global.

    block_size     tokens in a block
    window         blocks in the window, the query's own in the middle
    random         random blocks that a query block reads (r), drawn for each head and layer
    random_region  "uniform": from the whole sequence. "official", as the official code draws: from
                   the first 1024 tokens where there are 1024, 2048, 3072 or 4096, otherwise from
                   the first 2r + 4 blocks
    multiplicity   a random block that is global too (official: at 1024 tokens) is read "once", or
                   "counted" twice, as the official code does
    seed           of the random blocks
    kernel         "native" where that can, or "torch"

    Full attention up to window + 2 + 2r blocks, where sparsity is pointless. Rows with padding are
    read without it, each as if it were alone; padding comes out as zeros. No dropout on sparse
    attention (official). Raises Unsupported for a causal sequence, and where the official region
    has fewer than r blocks.
    """

    block_size: int = 64
    window: int = 3
    random: int = 3
    random_region: str = "uniform"
    multiplicity: str = "once"
    seed: int = 0
    kernel: str = "native"

    def __post_init__(self) -> None:
        kernels.check("random_region", self.random_region, REGIONS)
        kernels.check("multiplicity", self.multiplicity, MULTIPLICITIES)
        kernels.check("kernel", self.kernel, kernels.KERNELS)
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window is {self.window}; it is an odd number of blocks")
        for name, least in (("block_size", 1), ("random", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; the least is {least}")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        sequence = call.sequence
        if sequence.causal:
            raise Unsupported(CAUSAL)
        if sequence.valid is None or bool(sequence.valid.all()):
            whole = dataclasses.replace(call, sequence=sequence.replace(valid=None))
            return self._read(query, key, value, whole, self._extra(None))
        outputs = []
        for row, valid in enumerate(sequence.valid):
            kept = valid.nonzero()[:, 0]
            output = torch.zeros_like(query[row : row + 1])
            if len(kept):
                q, k, v = (x[row : row + 1].index_select(2, kept) for x in (query, key, value))
                one = dataclasses.replace(call, sequence=_alone(sequence, row, kept))
                read = self._read(q, k, v, one, self._extra(valid))
                output = output.index_copy(2, kept, read)
            outputs.append(output)
        return torch.cat(outputs)

    def exact(self) -> Method | None:
        return replace(self, block_size=2048)

    def small(self) -> Method:
        return replace(self, block_size=4, random=1)

    def unsupported(self, shape: Shape) -> str | None:
        return CAUSAL if shape.causal else None

    def state_bytes(self, shape: Shape) -> int:
        """The scores of one layer: of the pairs of blocks that are read (§2: O(n))."""
        grid = self._grid(shape.length, self._extra(None))
        read = grid.blocks
        if not self._dense(grid):
            read = min(grid.blocks, grid.outside + self.window + self.random)
        pairs = (grid.blocks - grid.outside) * read + grid.outside * grid.blocks
        return shape.bytes_per_element * shape.batch * shape.heads * pairs * self.block_size**2

    def _extra(self, valid: Tensor | None) -> int:
        """How many tokens in front are extra global ones; valid [n] of one row, None: all."""
        return 0

    def _grid(self, n: int, extra: int) -> Grid:
        blocks = math.ceil(n / self.block_size)
        return Grid(blocks, 1, blocks - 1)

    def _dense(self, grid: Grid) -> bool:
        return grid.blocks <= grid.outside + self.window + 2 * self.random

    def _read(self, query: Tensor, key: Tensor, value: Tensor, call: Call, extra: int) -> Tensor:
        """Sequences without padding, [B, H, n, d] → [B, H, n, d]."""
        batch, heads, n, _ = query.shape
        grid = self._grid(n, extra)
        if self._dense(grid):
            return exact_attention(query, key, value, call)
        seats = torch.arange(n, device=query.device)  # blocks of their own for the extra tokens
        seats[extra:] += -extra % self.block_size
        size = grid.blocks * self.block_size
        query, key, value = (_seated(x, 2, seats, size) for x in (query, key, value))
        bias = _key_bias(call.sequence, seats, size, query)
        done: Tensor | str = "torch was asked for"
        if self.kernel == "native":
            done = "a position bias"
            if call.bias is None and self.block_size % kernels.BLOCK:
                done = f"block_size is no multiple of {kernels.BLOCK}"
            elif call.bias is None:
                lists = _lists(self, grid, heads, call.layer)
                done = kernels.block_sparse(query, key, value, call.scale, lists, bias)
        kernels.note(self, done)
        if isinstance(done, str):
            layout = _layout(self, grid, batch, heads, call.layer, query.device)
            added = _Bias.of(call, seats, grid, bias, query)
            done = _by_blocks(query, key, value, call.scale, layout, added)
        return done if size == n else done.index_select(2, seats)


@dataclass(frozen=True)
class BigBirdETC(BigBird):
    """BigBird-ETC (§2): g extra tokens are global, and no block of the sequence is.

    g  extra global tokens. A token reads its window and them under one softmax; they read all.

    The paper trains an embedding for each. A model that has none gives each the mean of its stretch
    of the sequence to start from, and the mean of its positions.
    """

    random: int = 0
    g: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.g < 1:
            raise ValueError(f"g is {self.g}; the least is 1")
        if self.random_region == "official":
            raise ValueError("random_region is 'official'; ETC has no official random blocks")

    def exact(self) -> None:
        return None  # its extra tokens are read as keys, which vanilla has not

    def small(self) -> Method:
        return replace(self, block_size=4, g=4)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        batch, n, _ = hidden.shape
        valid, positions = sequence.valid, sequence.positions
        if valid is None:
            valid = torch.ones(batch, n, dtype=torch.bool, device=hidden.device)
        if positions is None:
            positions = torch.arange(n, device=hidden.device).expand(batch, n)
        tokens = valid.sum(1, keepdim=True).clamp(min=1)
        stretch = ((valid.cumsum(1) - 1) * self.g // tokens).masked_fill(~valid, self.g)
        count = _sums(valid.long(), stretch, self.g)
        place = _sums(positions * valid, stretch, self.g) / count.clamp(min=1)
        extra = _sums(hidden.float(), stretch, self.g) / count.clamp(min=1)[..., None]
        counts = sequence.log_multiplicity
        joined = Sequence(
            positions=torch.cat(((place + 0.5).long(), positions), 1),
            valid=torch.cat((count > 0, valid), 1),
            log_multiplicity=None if counts is None else torch.cat((0.0 * count, counts), 1),
            causal=sequence.causal,
        )
        hidden = super().encode(layers, torch.cat((extra.to(hidden.dtype), hidden), 1), joined)
        return hidden[:, self.g :]

    def _extra(self, valid: Tensor | None) -> int:
        return self.g if valid is None else int(valid[: self.g].sum())

    def _grid(self, n: int, extra: int) -> Grid:
        first = math.ceil(extra / self.block_size)
        blocks = first + math.ceil((n - extra) / self.block_size)
        return Grid(blocks, first, blocks)


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
def _layout(
    method: BigBird, grid: Grid, batch: int, heads: int, layer: int, device: torch.device
) -> Layout:
    table = _table(method, grid, heads, layer)
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
def _lists(method: BigBird, grid: Grid, heads: int, layer: int) -> kernels.Blocks:
    """The same for the native kernel."""
    every = list(range(grid.blocks))
    before, after = [every] * grid.first, [every] * (grid.blocks - grid.stop)
    table = _table(method, grid, heads, layer).tolist()
    rows = [[[key for key in keys if key < len(every)] for keys in head] for head in table]
    return kernels.Blocks.of([before + row + after for row in rows], method.block_size)


def _table(method: BigBird, grid: Grid, heads: int, layer: int) -> Tensor:
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


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout, bias: _Bias
) -> Tensor:
    """Global blocks read everything, then chunks of sparse blocks gather what they read."""
    batch, heads, size, width = query.shape
    queries, keys, values = (x.reshape(len(layout.order), -1, width) for x in (query, key, value))
    shared = queries.index_select(0, layout.shared.flatten()).view(batch, heads, -1, width)
    mask = bias.shared(layout.shared[0])
    read = scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scale)
    outputs = [read.reshape(-1, *queries.shape[1:])]
    trained = (query, key, value, bias.diagonals)
    gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in trained)
    room: tuple[Tensor, Tensor] | None = None
    if not gradient:  # fresh memory for each chunk would cost as much as a part of the attention
        most = max(index.numel() for _, index in layout.chunks())
        room = (keys.new_empty(most, *keys.shape[1:]), values.new_empty(most, *keys.shape[1:]))
        output = torch.empty_like(queries).index_copy_(0, layout.shared.flatten(), outputs[0])
    for chosen, index in layout.chunks():
        flat, mask = index.flatten(), bias.sparse(chosen, index)
        if room is None:
            near = keys.index_select(0, flat), values.index_select(0, flat)
        else:
            near = room[0][: len(flat)], room[1][: len(flat)]
            torch.index_select(keys, 0, flat, out=near[0])
            torch.index_select(values, 0, flat, out=near[1])
        chunk = (len(chosen), 1, -1, width)
        read = scaled_dot_product_attention(
            queries.index_select(0, chosen)[:, None],
            near[0].view(chunk),
            near[1].view(chunk),
            attn_mask=mask,
            scale=scale,
        )[:, 0]
        if gradient:
            outputs.append(read)
        else:
            output.index_copy_(0, chosen, read)
    if gradient:
        output = torch.cat(outputs).index_select(0, layout.order)
    return output.view(batch, heads, size, width)


@dataclass(frozen=True)
class _Bias:
    """What is added to scores: a bias of the keys, and a position bias, each where it is needed.

    keys       [B, blocks, block_size], or None
    positions  [B, blocks, block_size] int32, the first token of each row at 0
    diagonals  [H, 2·reach + 1]: the position bias at distance -reach … reach, or None
    """

    heads: int
    keys: Tensor | None
    positions: Tensor
    diagonals: Tensor | None

    @classmethod
    def of(cls, call: Call, seats: Tensor, grid: Grid, keys: Tensor | None, like: Tensor) -> _Bias:
        batch, heads, size, _ = like.shape
        shape, diagonals = (batch, grid.blocks, size // grid.blocks), None
        positions = call.sequence.positions
        if positions is None:
            positions = torch.arange(len(seats), device=like.device)[None]
        positions = (positions - positions.amin(1, keepdim=True)).int()
        if call.bias is not None:
            diagonals = call.bias.diagonals(int(positions.max()) + 1).to(like.dtype)
        positions = _seated(positions, 1, seats, size).expand(batch, -1).reshape(shape)
        return cls(heads, None if keys is None else keys.view(shape), positions, diagonals)

    def shared(self, blocks: Tensor) -> Tensor | None:
        """[B, H or 1, q or 1, all keys] for the queries of these blocks."""
        batch, keys = len(self.positions), self.positions.flatten(1)
        bias = None
        if self.diagonals is not None:
            queries = self.positions[:, blocks].flatten(1)
            distance = keys[:, None, :] - queries[:, :, None] + self.diagonals.shape[1] // 2
            bias = self.diagonals.index_select(1, distance.flatten())
            bias = bias.view(self.heads, *distance.shape).transpose(0, 1)
        return _sum(bias, None if self.keys is None else self.keys.view(batch, 1, 1, -1))

    def sparse(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[P, 1, block_size or 1, R·block_size] for blocks [P] that read blocks [P, R]."""
        count = self.positions.shape[1]

        def of_block(what: Tensor, block: Tensor) -> Tensor:
            row = block // (count * self.heads)
            return what[row, block % count].view(len(block), -1)

        bias = None
        if self.diagonals is not None:
            span = self.diagonals.shape[1]
            head = queries // count % self.heads
            start = (of_block(self.positions, queries) - (head * span + span // 2)[:, None]).int()
            index = of_block(self.positions, keys)[:, None, :] - start[:, :, None]
            # One flat gather is several times as fast as indexing.
            bias = self.diagonals.flatten().index_select(0, index.flatten()).view_as(index)[:, None]
        return _sum(bias, None if self.keys is None else of_block(self.keys, keys)[:, None, None])


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _key_bias(sequence: Sequence, seats: Tensor, size: int, like: Tensor) -> Tensor | None:
    """[B, size]: the keys' log-multiplicity, and the dtype's lowest number in empty seats."""
    counts = sequence.log_multiplicity
    if counts is None and len(seats) == size:
        return None
    bias = like.new_full((len(like), size), torch.finfo(like.dtype).min)
    return (
        bias.index_fill(1, seats, 0)
        if counts is None
        else bias.index_copy(1, seats, counts.to(like.dtype))
    )


def _seated(x: Tensor, dim: int, seats: Tensor, size: int) -> Tensor:
    """The n tokens of x moved to their seats, of `size`; zeros in the others."""
    if len(seats) == size:
        return x
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    return x.new_zeros(shape).index_copy(dim, seats, x)


def _alone(sequence: Sequence, row: int, kept: Tensor) -> Sequence:
    """One row of a batch, [1, kept], without its padding."""
    positions, counts = sequence.positions, sequence.log_multiplicity
    return Sequence(
        positions=kept[None] if positions is None else positions[row % len(positions), kept][None],
        log_multiplicity=None if counts is None else counts[row : row + 1, kept],
    )


def _sums(x: Tensor, index: Tensor, size: int) -> Tensor:
    """x [B, n, …] summed by index [B, n] → [B, size, …]; index `size` is left out."""
    shape = (x.shape[0], size + 1, *x.shape[2:])
    index = index.view(*index.shape, *(1,) * (x.dim() - 2)).expand_as(x)
    return x.new_zeros(shape).scatter_add(1, index, x)[:, :size]
