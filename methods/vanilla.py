"""Vanilla: exact attention (Vaswani et al., arXiv 1706.03762, §3.2), fused and unfused.

The two baselines of every comparison. `Vanilla` is the attention that users have today: torch's
fused kernel, with position biases and padding that never become an n×n tensor. `VanillaEager` is
the usual baseline of papers: scores, softmax and product as three steps over n×n tensors.

Official code: tensorflow/tensor2tensor (Apache-2.0).

Differs from the official codes, whose attention is unfused, only in rounding: VCC's divides query
and key each by d^¼, and padded keys get -1000 (VCC), -10⁴ (BigBird) or -10⁶ (LRA) added to their
scores, where here their weight is exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import dropout

from methods.base import AttentionCall, Feature, Method, Workload
from methods.kernels import Kernel
from methods.parts.attention import (
    add_key_bias,
    capped,
    mask_future,
    mask_past,
    per_head,
    positions_of,
    softmax,
)
from methods.parts.dense import DenseAttention


@dataclass(frozen=True)
class Vanilla(DenseAttention):
    """Exact attention, layer after layer. By default it is the baseline of every ratio: torch's
    fused attention, whichever kernel the methods use. A model whose own attention isn't exact
    (LongT5, LED) runs unchanged."""

    keeps_attention: ClassVar[bool] = True
    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)
    kernel: Kernel = "torch"

    def exact_limit(self) -> Method | None:
        return self


@dataclass(frozen=True)
class VanillaEager(Method):
    """Exact attention, unfused: softmax(q kᵀ · scale + bias) v with n×n tensors in memory."""

    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        sequence, n = call.sequence, query.shape[2]
        key, value = per_head(query, key, value)
        scores = capped(query @ key.transpose(-1, -2) * call.scale, call)
        if call.bias is not None:
            positions, _ = positions_of(sequence, n, query.device)
            scores = scores + call.bias(positions, positions).to(query.dtype)
        key_bias = sequence.key_bias(query.dtype)
        if key_bias is not None:
            scores = add_key_bias(scores, key_bias)
        if sequence.causal:
            scores = mask_future(scores, 0)
        scores = mask_past(scores, 0, call)
        return dropout(softmax(scores, call), call.dropout) @ value

    def exact_limit(self) -> Method:
        return self

    def state_bytes(self, workload: Workload) -> int:
        """Scores and probabilities of one layer."""
        scores = workload.batch * workload.heads * workload.length**2
        return 2 * workload.bytes_per_element * scores
