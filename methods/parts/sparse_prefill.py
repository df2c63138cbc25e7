"""Base of methods that read a causal model's prompt sparsely, and helpers that choose its keys.

Shapes: B batch, H query heads, G key heads, g = H / G of them to a key head, n tokens, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods import kernels
from methods.base import AttentionCall, Unsupported, Workload
from methods.parts.attention import mask_future, widened
from methods.parts.block_sparse import BlockChoice, gathered, native
from methods.parts.dense import NativeMethod, attend_exactly
from methods.parts.kv_cache import FullCache
from methods.parts.sequence import without_padding

CAUSAL = "it reads the prompt of a causal model"
TRAINING = "it is for inference: the choice of keys has no gradient"
BIAS = "it takes no position bias and no multiplicities"

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
