"""BigBird (Zaheer et al., arXiv 2007.14062): sliding-window, random and global attention.

A block of queries attends to its window of neighbouring blocks, to r random blocks and to the
global blocks; global blocks attend to everything (§2, appendix D). Linear in n.

Official code: google-research/bigbird (Apache-2.0).

Differs from the official code:
- Random blocks come from the whole sequence; there from its front (`random_region`).
- A random block that is also global counts once; there twice (`multiplicity`).
- Random blocks are drawn by another generator, so they differ, and exist for every length; there 9,
  10 and 11 blocks fail (r=3).
- Attention is full up to window + 2 + 2r blocks, 704 tokens; there up to 512.
- A row is cut into blocks without its padding, so its last tokens are global; there the last block
  of the padded batch is global.

Unlike transformers' version, it also keeps the random blocks outside training, builds no n×n
probabilities, uses no global seed, and does not switch to full attention for good after one short
input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, Method, Unsupported, Workload
from methods.bigbird.block_attention import BlockBias, block_attention, in_slots, key_bias_of
from methods.bigbird.block_pattern import BlockGrid, BlockPattern, layout_of, lists_of
from methods.parts.attention import bias_by_distance
from methods.parts.dense import NativeMethod, attend_exactly
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.sequence import without_padding

CAUSAL = "BigBird is for encoders: its global blocks would show a causal model its future"


@dataclass(frozen=True)
class BigBird(NativeMethod):
    """BigBird-ITC: the sequence's own first and last blocks are global.

    block_size     tokens in a block
    window         blocks in the window, with the query's own in the middle
    random         random blocks of a query block (r), drawn for each head and layer
    random_region  "uniform": from the whole sequence. "official", as in the official code: from the
                   first 1024 tokens of inputs of 1024, 2048, 3072 or 4096, otherwise from the first
                   2r + 4 blocks
    multiplicity   a random block that is also global (official: at 1024 tokens) counts "once", or
                   twice ("counted"), as in the official code
    seed           seed of the random blocks
    kernel         as in `DenseAttention`, "auto" at any length; products likewise

    Full attention up to window + 2 + 2r blocks, where sparsity saves nothing. Rows with padding are
    computed without it, each as if it were alone; padding comes out as zeros. No dropout on sparse
    attention (official). Raises Unsupported for a causal sequence, and where the official region
    has fewer than r blocks.
    """

    block_size: Positive = 64
    window: Annotated[int, Range(least=1, step=2)] = 3
    random: NonNegative = 3
    random_region: Literal["uniform", "official"] = "uniform"
    multiplicity: Literal["once", "counted"] = "once"
    seed: NonNegative = 0
    kernel: kernels.Kernel = "auto"
    products: kernels.Products = "float32"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal:
            raise Unsupported(CAUSAL)
        return without_padding(self._unpadded, query, key, value, call)

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return self._dense(self._grid(workload.length, self._extra(None)))

    def exact_limit(self) -> Method | None:
        return replace(self, block_size=2048)

    def scaled_down(self) -> Method:
        return replace(self, block_size=4, random=1)

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else None

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer, for the pairs of blocks in the pattern (§2: O(n))."""
        grid = self._grid(workload.length, self._extra(None))
        per_sparse = grid.blocks
        if not self._dense(grid):
            per_sparse = min(grid.blocks, grid.outside + self.window + self.random)
        pairs = (grid.blocks - grid.outside) * per_sparse + grid.outside * grid.blocks
        scores = workload.batch * workload.heads * pairs * self.block_size**2
        return workload.bytes_per_element * scores

    def pattern(self) -> BlockPattern:
        return BlockPattern(
            self.block_size, self.window, self.random, self.random_region, self.multiplicity,
            self.seed,
        )  # fmt: skip

    def _extra(self, valid: Tensor | None) -> int:
        """How many extra global tokens come first; valid [n] of one row, None: all tokens are
        valid."""
        return 0

    def _grid(self, n: int, extra: int) -> BlockGrid:
        blocks = math.ceil(n / self.block_size)
        return BlockGrid(blocks, 1, blocks - 1)

    def _dense(self, grid: BlockGrid) -> bool:
        return grid.blocks <= grid.outside + self.window + 2 * self.random

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        """[B, H, n, d] → [B, H, n, d]: see `methods.parts.sequence.AttendUnpadded`."""
        batch, heads, n, _ = query.shape
        extra = self._extra(valid)
        grid = self._grid(n, extra)
        if self._dense(grid):
            return attend_exactly(self, query, key, value, call, self.kernel, self.products)
        slots = torch.arange(n, device=query.device)  # extra tokens get separate blocks
        slots[extra:] += -extra % self.block_size
        size = grid.blocks * self.block_size
        query, key, value = (in_slots(x, 2, slots, size) for x in (query, key, value))
        key_bias = key_bias_of(call.sequence, slots, size, query)
        output = self._native(query, key, value, call, grid, key_bias, n, extra)
        kernels.note(self, output, self.products, query)
        if isinstance(output, str):
            layout = layout_of(self.pattern(), grid, batch, heads, call.layer, query.device)
            bias = BlockBias.of(call, slots, grid, key_bias, query)
            output = block_attention(query, key, value, call.scale, layout, bias)
        return output if size == n else output.index_select(2, slots)

    def _native(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, grid: BlockGrid,
        key_bias: Tensor | None, n: int, extra: int,
    ) -> Tensor | str:  # fmt: skip
        """The native kernel's output for n tokens in their slots, or the reason why it can't."""
        if self.kernel == "torch":
            return kernels.ASKED
        bias = bias_by_distance(call, n, query.device)
        if self.block_size % kernels.BLOCK:
            return f"block_size is no multiple of {kernels.BLOCK}"
        if isinstance(bias, str):
            return bias
        if bias is not None and extra:
            return "a position bias, and extra tokens"
        lists = lists_of(self.pattern(), grid, query.shape[1], call.layer)
        return kernels.block_sparse(
            query, key, value, call.scale, lists, key_bias, self.products, bias
        )
