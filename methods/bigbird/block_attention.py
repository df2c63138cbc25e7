"""Block-sparse attention over gathered blocks of keys, in torch. BigBird runs it in training and
where the native kernel can't run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods.bigbird.block_pattern import BlockGrid, BlockLayout
from methods.parts.sequence import AttentionCall, SequenceInfo


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, layout: BlockLayout, bias: BlockBias
) -> Tensor:
    """Global blocks attend to everything, sparse blocks to the gathered key blocks of their list.
    Without gradients, chunks are computed one at a time. query, key, value [B, H,
    blocks·block_size, d] → the same shape."""
    batch, heads, size, width = query.shape
    queries, keys, values = (x.reshape(len(layout.order), -1, width) for x in (query, key, value))
    flat_global = layout.global_blocks.flatten()
    dense = queries.index_select(0, flat_global).view(batch, heads, -1, width)
    mask = bias.of_global(layout.global_blocks[0])
    result = scaled_dot_product_attention(dense, key, value, attn_mask=mask, scale=scale)
    outputs = [result.reshape(-1, *queries.shape[1:])]
    trained = (query, key, value, bias.diagonals)
    gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in trained)
    buffers: tuple[Tensor, Tensor] | None = None
    # A chunk's gradient would be as large as all keys.
    chunks = layout.groups if gradient else [*layout.chunks()]
    if not gradient:  # new memory for each chunk would cost as much as part of the attention
        most = max(index.numel() for _, index in chunks)
        buffers = keys.new_empty(most, *keys.shape[1:]), values.new_empty(most, *keys.shape[1:])
        output = torch.empty_like(queries).index_copy_(0, flat_global, outputs[0])
    for chosen, index in chunks:
        flat, mask = index.flatten(), bias.of_sparse(chosen, index)
        if buffers is None:
            near = keys.index_select(0, flat), values.index_select(0, flat)
        else:
            near = buffers[0][: len(flat)], buffers[1][: len(flat)]
            torch.index_select(keys, 0, flat, out=near[0])
            torch.index_select(values, 0, flat, out=near[1])
        chunk = (len(chosen), 1, -1, width)
        result = scaled_dot_product_attention(
            queries.index_select(0, chosen)[:, None],
            near[0].view(chunk),
            near[1].view(chunk),
            attn_mask=mask,
            scale=scale,
        )[:, 0]
        if gradient:
            outputs.append(result)
        else:
            output.index_copy_(0, chosen, result)
    if gradient:
        output = torch.cat(outputs).index_select(0, layout.order)
    return output.view(batch, heads, size, width)


@dataclass(frozen=True)
class BlockBias:
    """Biases to add to the scores, one of each key and one of positions, computed block by block.

    keys       [B, blocks, block_size], or None
    positions  [B, blocks, block_size] int32, the first token of each row at 0
    diagonals  [H, 2·reach + 1]: the position bias at distance -reach … reach, or None
    """

    heads: int
    keys: Tensor | None
    positions: Tensor
    diagonals: Tensor | None

    @classmethod
    def of(
        cls, call: AttentionCall, slots: Tensor, grid: BlockGrid, keys: Tensor | None, like: Tensor
    ) -> BlockBias:
        """slots: see `in_slots`; keys: see `key_bias_of`; like: the query, for shape and dtype."""
        batch, heads, size, _ = like.shape
        shape, diagonals = (batch, grid.blocks, size // grid.blocks), None
        positions = call.sequence.positions
        if positions is None:
            positions = torch.arange(len(slots), device=like.device)[None]
        positions = (positions - positions.amin(1, keepdim=True)).int()
        if call.bias is not None:
            diagonals = call.bias.diagonals(int(positions.max()) + 1).to(like.dtype)
        positions = in_slots(positions, 1, slots, size).expand(batch, -1).reshape(shape)
        return cls(heads, None if keys is None else keys.view(shape), positions, diagonals)

    def of_global(self, blocks: Tensor) -> Tensor | None:
        """[B, H or 1, q or 1, all keys] for the queries of these blocks."""
        batch, keys = len(self.positions), self.positions.flatten(1)
        bias = None
        if self.diagonals is not None:
            queries = self.positions[:, blocks].flatten(1)
            distance = keys[:, None, :] - queries[:, :, None] + self.diagonals.shape[1] // 2
            bias = self.diagonals.index_select(1, distance.flatten())
            bias = bias.view(self.heads, *distance.shape).transpose(0, 1)
        return _sum(bias, None if self.keys is None else self.keys.view(batch, 1, 1, -1))

    def of_sparse(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[P, 1, block_size or 1, R·block_size] for query blocks [P] and key blocks [P, R]."""
        count = self.positions.shape[1]

        def of_block(x: Tensor, block: Tensor) -> Tensor:
            row = block // (count * self.heads)
            return x[row, block % count].view(len(block), -1)

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


def key_bias_of(sequence: SequenceInfo, slots: Tensor, size: int, like: Tensor) -> Tensor | None:
    """[B, size]: the keys' log-multiplicity, and the lowest number of the dtype in empty slots;
    None where there is nothing to add."""
    counts = sequence.log_multiplicity
    if counts is None and len(slots) == size:
        return None
    bias = like.new_full((len(like), size), torch.finfo(like.dtype).min)
    return (
        bias.index_fill(1, slots, 0)
        if counts is None
        else bias.index_copy(1, slots, counts.to(like.dtype))
    )


def in_slots(x: Tensor, dim: int, slots: Tensor, size: int) -> Tensor:
    """The n tokens of x, moved to their `slots` [n] among `size` along `dim`; other slots are 0."""
    if len(slots) == size:
        return x
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    return x.new_zeros(shape).index_copy(dim, slots, x)
