"""Attention of a causal model's prompt to some blocks of its keys, by the native kernel, or in
torch on gathered blocks.

Shapes of one row of a batch: H query heads, G key heads, n queries, m keys, d head size; Q blocks
of queries and K of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from methods import kernels

TOGETHER = 8
"""Blocks of queries that torch reads at a time, for each thread: their keys stay in a cache."""


@dataclass(frozen=True)
class BlockChoice:
    """Which blocks of keys each block of queries reads; each query reads at least one key.

    chosen   [H or 1, Q, K] bool
    size     tokens in a block
    visible  [chosen blocks, 64] int64 in the order of `chosen.nonzero()`, where size is 64: bit j
             of word i is 1 if the block's query i reads its key j; None: queries read the keys up
             to their own
    """

    chosen: Tensor
    size: int = kernels.BLOCK
    visible: Tensor | None = None

    def lists(self) -> tuple[Tensor, Tensor]:
        """`starts` and `keys` of `kernels.Blocks`, for blocks of this size."""
        ends = self.chosen.sum(-1).flatten().cumsum(0).view(len(self.chosen), -1)
        starts = torch.cat((pad(ends[:-1, -1], (1, 0))[:, None], ends), 1)
        return starts.int(), self.chosen.nonzero()[:, 2].int()

    def split(self, n: int) -> BlockChoice:
        """The same choice for n tokens, in blocks of the native kernel's size."""
        parts, blocks = self.size // kernels.BLOCK, -(-n // kernels.BLOCK)
        if parts == 1:
            return self
        chosen = self.chosen.repeat_interleave(parts, 1).repeat_interleave(parts, 2)
        return BlockChoice(chosen[:, :blocks, :blocks] & past(blocks, chosen.device))


def past(blocks: int, device: torch.device) -> Tensor:
    """[blocks, blocks] bool: whether a block of keys comes no later than a block of queries."""
    return torch.ones(blocks, blocks, dtype=torch.bool, device=device).tril()


def native(
    query: Tensor, key: Tensor, value: Tensor, scale: float, choice: BlockChoice, products: str
) -> Tensor | str:
    """query [H, n, d], key and value [G, m, d] → [H, n, d], or the reason why it can't run."""
    if choice.size % kernels.BLOCK:
        return f"blocks of {choice.size} tokens, no multiple of {kernels.BLOCK}"
    choice = choice.split(query.shape[1])
    lists = kernels.Blocks(*choice.lists(), choice.visible)
    causal = choice.visible is None
    output = kernels.block_sparse(
        query[None], key[None], value[None], scale, lists, products=products, causal=causal
    )
    return output if isinstance(output, str) else output[0]


def gathered(
    query: Tensor, key: Tensor, value: Tensor, scale: float, choice: BlockChoice
) -> Tensor:
    """Like `native`, in torch: blocks of queries that read about the same number of blocks of keys
    are computed together."""
    (heads, n, d), size = query.shape, choice.size
    queries = _in_blocks(query, size).flatten(0, 1)
    count, blocks = queries.shape[0] // heads, -(-key.shape[1] // size)
    keys, values = (_in_blocks(x, size).flatten(0, 1) for x in (key, value))
    starts, listed = (x.long() for x in choice.lists())
    starts = starts.expand(heads, -1)
    first, lengths = starts[:, :-1].flatten(), starts.diff(dim=1).flatten()
    order, outputs = lengths.argsort(), []
    for chunk in order.split(TOGETHER * torch.get_num_threads()):
        entry = torch.arange(int(lengths[chunk[-1]]), device=query.device)
        exists = entry < lengths[chunk, None]
        entry = (first[chunk, None] + entry).where(exists, first[chunk, None])
        read = listed[entry]
        place = (chunk // count // (heads // len(key)))[:, None] * blocks + read
        near = (len(chunk), 1, -1, d)
        outputs.append(
            scaled_dot_product_attention(
                queries.index_select(0, chunk)[:, None],
                keys.index_select(0, place.flatten()).view(near),
                values.index_select(0, place.flatten()).view(near),
                attn_mask=_mask(choice, chunk % count, read, entry, exists, query.dtype),
                scale=scale,
            )[:, 0]
        )
    output = torch.cat(outputs).index_select(0, order.argsort())
    return output.view(heads, -1, d)[:, :n]


def _mask(
    choice: BlockChoice, queries: Tensor, keys: Tensor, entry: Tensor, exists: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """[P, 1, size, R·size] to add to the scores of blocks of queries [P] and keys [P, R]; those
    that `exist` have the numbers `entry` among the chosen blocks."""
    size, (some, most) = choice.size, keys.shape
    mask = torch.zeros(some, size, most, size, dtype=dtype, device=keys.device)
    tiles = mask.transpose(1, 2)
    if choice.visible is None:
        future = torch.ones(size, size, dtype=torch.bool, device=keys.device).triu(1)
        own = mask.new_zeros(size, size).masked_fill(future, -torch.inf)
        tiles[(keys == queries[:, None]).nonzero(as_tuple=True)] = own
    else:
        words = choice.visible[entry]
        partly = (words != -1).any(-1)
        tiles[partly.nonzero(as_tuple=True)] = _hidden(words[partly], dtype)
    tiles[(~exists).nonzero(as_tuple=True)] = -torch.inf
    return mask.view(some, 1, size, -1)


def words_of(bits: Tensor) -> Tensor:
    """[..., 64] bool → [...] int64: bit j of a word is element j."""
    powers = 1 << torch.arange(64, device=bits.device)
    return (bits * powers).sum(-1)


def _hidden(words: Tensor, dtype: torch.dtype) -> Tensor:
    """[...] int64 → [..., 64]: 0 where a bit is set, elsewhere -inf."""
    byte, bit = torch.arange(256, device=words.device), torch.arange(8, device=words.device)
    hidden = (byte[:, None] >> bit) & 1 == 0
    table = torch.zeros(256, 8, dtype=dtype, device=words.device).masked_fill(hidden, -torch.inf)
    numbers = words.contiguous().view(torch.uint8).flatten().int()  # little-endian bytes
    return table.index_select(0, numbers).view(*words.shape, 64)


def _in_blocks(x: Tensor, size: int) -> Tensor:
    """[H, n, d] → [H, blocks, size, d], the last one filled up with zeros."""
    blocks: Tensor = pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size))
    return blocks
