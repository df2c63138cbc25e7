"""Sparse Transformer (Child et al., arXiv 1904.10509): strided and fixed factorised attention.

"strided": token i reads the l tokens up to itself, and every j with i - j a multiple of l (§4.3);
"fixed": token i reads its own block of l tokens, and the last c tokens of every block (§4.3). Both
sets are read in one softmax (§5.2's merged heads). With l near √n the cost is O(n √n).

The paper's models are causal. In an encoder, the sets extend to both sides: "strided" reads fewer
than l tokens on each side and the multiples of l in both directions, "fixed" the whole own block
and the last c tokens of all blocks.

Official codes: openai/sparse_attention (no licence found) and google-research/long-range-arena
(Apache-2.0).

Differs from official codes:
- LRA's encoder reads only earlier tokens, and also each block's first token: in the paper's example
  of 4 tokens that is exact causal attention.
- OpenAI's window has l tokens, as here; the paper's formula, max(0, i - l) … i, has l + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from methods.base import AttentionCall, Method, Workload
from methods.parts.attention import per_head
from methods.parts.parameters import Positive
from methods.parts.partial import attend_in_groups, fused_in_groups
from methods.parts.sequence import without_padding


@dataclass(frozen=True)
class SparseTransformer(Method):
    """Factorised attention, the same in all heads.

    pattern  "fixed" (the paper's for text) or "strided" (for images and audio)
    l        stride, and tokens in a block; the paper's typical values are 128 and 256
    c        "fixed": tokens of a block that all tokens read; the paper's are 8, 16 and 32

    Rows are cut into blocks without their padding. No attention dropout.
    """

    pattern: Literal["fixed", "strided"] = "fixed"
    l: Positive = 128  # noqa: E741
    c: Positive = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c > self.l:
            raise ValueError(f"c is {self.c}; a block has l={self.l} tokens")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return without_padding(self._unpadded, query, key, value, call)

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return workload.length <= self.l

    def exact_limit(self) -> Method | None:
        return replace(self, l=2048)

    def scaled_down(self) -> Method:
        return replace(self, l=8, c=2)

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer."""
        blocks = -(-workload.length // self.l)
        near, far = min(self.l, workload.length), blocks * self.c
        if self.pattern == "strided":
            near, far = min(2 if workload.causal else 3, blocks) * near, blocks
        pairs = blocks * min(self.l, workload.length) * (near + far)
        return workload.bytes_per_element * workload.batch * workload.heads * pairs

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        key, value = per_head(query, key, value)
        n, causal = query.shape[2], call.sequence.causal
        l = min(self.l, n)  # noqa: E741
        tokens = torch.arange(-(-n // l) * l, device=query.device).view(-1, l)
        if self.pattern == "fixed":
            return fused_in_groups(query, key, value, call, tokens, *self._fixed(tokens))
        sides = (-l, 0) if causal else (-l, 0, l)
        window = torch.cat([tokens + side for side in sides], 1)
        near = (window[:, None, :] - tokens[:, :, None]).abs() < l
        part = attend_in_groups(query, key, value, call, tokens, window, near)
        if len(tokens) > 1:
            columns = tokens.T
            other = columns[:, None, :] != columns[:, :, None]  # the token itself is in the window
            far = attend_in_groups(query, key, value, call, columns, columns, other)
            part = part.merged(far)
        return part.output.to(query.dtype)

    def _fixed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The keys of the blocks of tokens [N, l], [N, l + N c]: their own tokens, and the last c
        of every block; and a mask [N, 1, l + N c] by which a block's own tokens count once."""
        blocks, l = tokens.shape  # noqa: E741
        last = tokens[:, -self.c :].flatten().expand(blocks, -1)
        once = torch.cat((torch.ones_like(tokens) > 0, last // l != tokens[:, :1] // l), 1)
        return torch.cat((tokens, last), 1), once[:, None, :]
