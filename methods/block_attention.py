"""Attention over gathered blocks of keys, in torch: what BigBird runs in training and wherever the
native kernel can't."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods.base import Call, Sequence
from methods.block_pattern import Grid, Layout


def by_blocks(
    query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout, bias: Bias
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
class Bias:
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
    def of(cls, call: Call, seats: Tensor, grid: Grid, keys: Tensor | None, like: Tensor) -> Bias:
        batch, heads, size, _ = like.shape
        shape, diagonals = (batch, grid.blocks, size // grid.blocks), None
        positions = call.sequence.positions
        if positions is None:
            positions = torch.arange(len(seats), device=like.device)[None]
        positions = (positions - positions.amin(1, keepdim=True)).int()
        if call.bias is not None:
            diagonals = call.bias.diagonals(int(positions.max()) + 1).to(like.dtype)
        positions = seated(positions, 1, seats, size).expand(batch, -1).reshape(shape)
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


def key_bias_of(sequence: Sequence, seats: Tensor, size: int, like: Tensor) -> Tensor | None:
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


def seated(x: Tensor, dim: int, seats: Tensor, size: int) -> Tensor:
    """The n tokens of x moved to their seats, of `size`; zeros in the others."""
    if len(seats) == size:
        return x
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    return x.new_zeros(shape).index_copy(dim, seats, x)
