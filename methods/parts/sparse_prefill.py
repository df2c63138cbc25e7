"""Base of methods that read a causal model's prompt sparsely, helpers that choose its keys, and
attention to some blocks of them, by the native kernel, or in torch on gathered blocks.

Shapes: B batch, H query heads, G key heads, g = H / G of them to a key head, n tokens or queries, m
keys, d head size; Q blocks of queries and K of keys, in one row of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from methods import kernels
from methods.base import AttentionCall, Unsupported, Workload
from methods.parts.attention import mask_future, widened
from methods.parts.dense import NativeMethod, attend_exactly
from methods.parts.kv_cache import FullCache
from methods.parts.sequence import without_padding

CAUSAL = "it reads the prompt of a causal model"
TRAINING = "it is for inference: the choice of keys has no gradient"
BIAS = "it takes no position bias and no multiplicities"
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


Read = tuple[Tensor, Tensor, BlockChoice]


@dataclass(frozen=True, kw_only=True)
class SparsePrefill(NativeMethod):
    """A method that chooses, from the prompt, the keys that each head reads; new tokens attend to
    all keys.

    kernel    as in `DenseAttention`, but "auto" is native at any length; products as there

    Rows are read without their padding, each as if it were alone; padding comes out as zeros.
    Raises Unsupported for a sequence that isn't causal, a position bias, multiplicities and where a
    gradient is needed. `skipped` is the share of tiles of scores that were left out, over the
    prompts that weren't read densely.
    """

    chooses_ahead: ClassVar[bool] = True
    kernel: kernels.Kernel = "auto"
    products: kernels.Products = "float32"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if not call.sequence.causal:
            raise Unsupported(CAUSAL)
        if call.bias is not None or call.sequence.log_multiplicity is not None:
            raise Unsupported(BIAS)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise Unsupported(TRAINING)
        return without_padding(self._unpadded, query, key, value, call)

    def unsupported(self, workload: Workload) -> str | None:
        if not workload.causal:
            return CAUSAL
        if workload.position_bias:
            return BIAS
        return TRAINING if workload.training else None

    def kv_cache(self, workload: Workload) -> FullCache:
        """The method reads only the prompt; new tokens attend to all keys."""
        return FullCache(self.attend)

    @property
    def skipped(self) -> float:
        left_out, count = getattr(self, "tiles", (0, 0))
        return left_out / max(1, count)

    def count_tiles(self, left_out: int, count: int) -> None:
        """Adds the tiles of one prompt to `skipped`."""
        before = getattr(self, "tiles", (0, 0))
        # Not a dataclass field, since it is not part of a cell.
        object.__setattr__(self, "tiles", (before[0] + left_out, before[1] + count))

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return self.is_dense(workload.length)

    def is_dense(self, n: int) -> bool:
        """Whether all pairs of n tokens are read."""
        return False

    def read(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Read:
        """Keys and values [1 or g, m, d] for the query heads [g, n, d] of one key head, given its
        key and value [n, d], and the blocks of them that are read."""
        raise NotImplementedError

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        """[B, H, n, d] → [B, H, n, d]: see `methods.parts.sequence.AttendUnpadded`."""
        if self.is_dense(query.shape[2]):
            return attend_exactly(self, query, key, value, call, self.kernel, self.products)
        rows = [
            self._attend(*heads, call.scale)
            for row in zip(query.unflatten(1, (key.shape[1], -1)), key, value, strict=True)
            for heads in zip(*row, strict=True)
        ]
        return torch.stack(rows).view_as(query)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        key, value, choice = self.read(query, key, value, scale)
        heads, blocks, _ = choice.chosen.shape
        count = heads * blocks * (blocks + 1) // 2
        self.count_tiles(count - int(choice.chosen.sum()), count)
        output: Tensor | str = kernels.ASKED
        if self.kernel != "torch":
            output = native(query, key, value, scale, choice, self.products)
        kernels.note(self, output, self.products, query)
        if isinstance(output, str):
            output = gathered(query, key, value, scale, choice)
        return output


def last_weights(query: Tensor, key: Tensor, scale: float, last: int) -> Tensor:
    """[g, q, n]: the exact weights of the last q queries, at most `last`, on all keys."""
    rows = query[:, -last:].contiguous()  # @ copies the keys otherwise
    scores = widened(rows * scale @ key.T)
    own = scores[..., -rows.shape[1] :]
    own.copy_(mask_future(own, 0))
    return scores.softmax(-1)


def offset_sums(weights: Tensor) -> Tensor:
    """[g, n]: the sum of the weights [g, q, n] of the last q queries at each offset."""
    g, q, n = weights.shape
    padded = pad(weights, (q - 1, 0))
    sums = padded.as_strided((g, q, n), (q * (n + q - 1), n + q, 1)).sum(1)
    return sums.flip(1)


def fewest_covering(weights: Tensor, share: float, first: Tensor | None = None) -> Tensor:
    """[..., n] bool: the fewest, and so the largest, weights whose sum reaches a share of the
    total. Those that are `first` are always included, and counted before the others."""
    order = weights if first is None else weights.masked_fill(first, torch.inf)
    index = order.argsort(-1, descending=True)
    taken = weights.double().gather(-1, index)
    before = taken.cumsum(-1) - taken
    wanted = before < share * taken.sum(-1, keepdim=True)
    chosen = torch.zeros_like(wanted).scatter(-1, index, wanted)
    return chosen if first is None else chosen | first


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
