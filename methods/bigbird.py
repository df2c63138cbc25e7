"""BigBird (Zaheer et al., arXiv 2007.14062): a window, random blocks and global ones.

A block of queries reads its window of neighbours, r random blocks and the global blocks; those
read everything (§2, appendix D). Linear in n.
What transformers' version does and this doesn't: no random blocks outside training, n×n
probabilities, a global seed, full attention for good after one short input.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods import kernels
from methods.base import Call, Layer, Method, Sequence, Shape, Unsupported
from methods.block_attention import Bias, by_blocks, key_bias_of, seated
from methods.block_pattern import Grid, layout_of, lists_of
from methods.vanilla import bias_by_distance, exact_attention

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
    products       of the native kernel: "float32", or "bfloat16" (rounded, sums in float32)

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
    products: str = "float32"

    def __post_init__(self) -> None:
        kernels.check("random_region", self.random_region, REGIONS)
        kernels.check("multiplicity", self.multiplicity, MULTIPLICITIES)
        kernels.check("kernel", self.kernel, kernels.KERNELS)
        kernels.check("products", self.products, kernels.PRODUCTS)
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
        query, key, value = (seated(x, 2, seats, size) for x in (query, key, value))
        bias = key_bias_of(call.sequence, seats, size, query)
        done: Tensor | str = "torch was asked for"
        if self.kernel == "native":
            by_distance = bias_by_distance(call, n, query.device)
            if self.block_size % kernels.BLOCK:
                done = f"block_size is no multiple of {kernels.BLOCK}"
            elif isinstance(by_distance, str):
                done = by_distance
            elif by_distance is not None and extra:
                done = "a position bias, and extra tokens"
            else:
                lists = lists_of(self, grid, heads, call.layer)
                done = kernels.block_sparse(
                    query, key, value, call.scale, lists, bias, self.products, by_distance
                )
        kernels.note(self, done, self.products)
        if isinstance(done, str):
            layout = layout_of(self, grid, batch, heads, call.layer, query.device)
            added = Bias.of(call, seats, grid, bias, query)
            done = by_blocks(query, key, value, call.scale, layout, added)
        return done if size == n else done.index_select(2, seats)


@dataclass(frozen=True)
class BigBirdETC(BigBird):
    """BigBird-ETC (§2): g extra tokens are global, and no block of the sequence is.

    g  extra global tokens. A token reads its window and them under one softmax; they read all.

    The paper trains an embedding for each. A model that has none gives each the mean of its stretch
    of the sequence to start from, and the mean of its positions. (The paper's runs had blocks of 84
    tokens, and ETC a radius of as many around each token; the native kernel takes blocks of 64.)
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
