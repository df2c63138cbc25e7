"""Local attention (Tay et al., arXiv 2011.04006, Long Range Arena): softmax within disjoint blocks.

In LRA's tables, the baseline with the fewest keys: a token reads only its own block. Linear in n.

Official code: google-research/long-range-arena (Apache-2.0).

Differs from LRA's code:
- Its reshape puts every (n/b)-th token into one "block" (layout="strided"), while its padding mask
  is for contiguous blocks.
- A row is cut into blocks without its padding; there padding takes part in the blocks, and a whole
  block is added where n is a multiple of b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from methods.base import AttentionCall, Method, Unsupported, Workload
from methods.parts.attention import per_head, positions_of
from methods.parts.parameters import Positive
from methods.parts.sequence import without_padding

CAUSAL = "the first token of each block would read nothing but itself in a causal model"


@dataclass(frozen=True)
class LocalAttention(Method):
    """Exact attention within blocks.

    b       tokens in a block
    layout  "contiguous": b neighbours; "strided": block i of ⌈n/b⌉ has the tokens i, i + ⌈n/b⌉, i +
            2⌈n/b⌉, …, as in LRA's code
    """

    b: Positive = 50
    layout: Literal["contiguous", "strided"] = "contiguous"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal:
            raise Unsupported(CAUSAL)
        return without_padding(self._unpadded, query, key, value, call)

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else None

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return workload.length <= self.b

    def exact_limit(self) -> Method | None:
        return replace(self, b=2048)

    def scaled_down(self) -> Method:
        return replace(self, b=9)

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer."""
        pairs = workload.length * min(self.b, workload.length)
        return workload.bytes_per_element * workload.batch * workload.heads * pairs

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        key, value = per_head(query, key, value)
        batch, heads, n, _ = query.shape
        query_blocks, key_blocks, value_blocks = (
            self._in_blocks(x).flatten(0, 1) for x in (query, key, value)
        )
        mask = self._mask(query, call)
        if mask is not None:
            mask = mask.expand(batch, heads, *mask.shape[2:]).flatten(0, 1)
        output = scaled_dot_product_attention(
            query_blocks, key_blocks, value_blocks, mask, call.dropout, scale=call.scale
        ).view(batch, heads, *query_blocks.shape[1:])
        if self.layout == "strided":
            output = output.transpose(2, 3)
        return output.flatten(2, 3)[:, :, :n]

    def _in_blocks(self, x: Tensor) -> Tensor:
        """[B, H, n, d] → [B, H, blocks, tokens of a block, d], with zeros after the last token."""
        n = x.shape[2]
        size = min(self.b, n)
        blocks = math.ceil(n / size)
        x, strided = pad(x, (0, 0, 0, blocks * size - n)), self.layout == "strided"
        shape = (*x.shape[:2], *((size, blocks) if strided else (blocks, size)), x.shape[3])
        return x.reshape(shape).transpose(2, 3) if strided else x.reshape(shape)

    def _mask(self, query: Tensor, call: AttentionCall) -> Tensor | None:
        """The mask to add to the scores: [B or 1, H or 1, blocks, tokens or 1, tokens]."""
        n, counts = query.shape[2], call.sequence.log_multiplicity
        mask = None
        if counts is not None or n % min(self.b, n):
            ones = query.new_ones(1, 1, n, 1)
            bias = 0 * ones if counts is None else counts[:, None, :, None].to(query.dtype)
            empty = self._in_blocks(ones) == 0
            lowest = torch.finfo(query.dtype).min
            mask = self._in_blocks(bias).masked_fill(empty, lowest).transpose(3, 4)
        if call.bias is not None:
            positions, _ = positions_of(call.sequence, n, query.device)
            places = self._in_blocks(positions[:, None, :, None])[:, 0, :, :, 0]
            bias = call.bias(*[places.flatten(0, 1)] * 2).to(query.dtype)
            bias = bias.unflatten(0, places.shape[:2]).transpose(1, 2)
            mask = bias if mask is None else bias + mask
        return mask
