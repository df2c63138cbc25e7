"""Nyströmformer (Xiong et al., arXiv 2102.03902): softmax attention from a few landmarks.

With q̃, k̃ the means of m stretches of queries and keys, output = F A⁺ B v for F = softmax(q k̃ᵀ),
A = softmax(q̃ k̃ᵀ) and B = softmax(q̃ kᵀ) (§3.2, eq. 13). The pseudoinverse is iterated:
Z ← ¼ Z (13 I - A Z (15 I - A Z (7 I - A Z))) from Z₀ = Aᵀ / (‖A‖₁ ‖A‖∞) (§3.3, eq. 14). O(n m d).
Weights may be negative, and sum to 1 only where A is invertible and Z has converged.

Official codes: mlpen/Nystromformer and transformers' (both Apache-2.0).

Differs from official codes:
- Z₀ is scaled by each A's own norms; there by default, and in transformers, by the largest norms of
  the batch, so that a row's output depends on the others.
- A row's padding is left out; there it enters landmarks as zeros, and F and A unmasked.
- n need not be a multiple of m: the lengths of stretches differ by one at most.

The depthwise convolution of v over tokens that is added to the output (§3.4, figure 2) has extra
weights, so it is off by default; on LRA it has 35 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import conv2d, scaled_dot_product_attention

from methods.base import AttentionCall, Method, OwnParameter, Unsupported, Workload
from methods.parts.attention import exact_attention, per_head, widened
from methods.parts.blocks import segment_means
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.sequence import padding_last

CAUSAL = "landmarks are means over all tokens: they would show a causal model its future"
BIAS = "landmarks have no position that a position bias could be computed for"


@dataclass(frozen=True)
class Nystromformer(Method):
    """Attention through landmarks; exact up to m tokens, as in the official code.

    m            landmarks
    iterations   iterations of the pseudoinverse
    convolution  tokens of the convolution, an odd number; 0: no convolution

    No attention dropout. Raises Unsupported for a causal sequence or a position bias.
    """

    m: Positive = 64
    iterations: NonNegative = 6
    convolution: Literal[0] | Annotated[int, Range(least=1, step=2)] = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        return padding_last(self._attend, query, key, value, call)

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        """Initial values with the official code's variance, 1 / (3 · convolution), but normal."""
        if not self.convolution:
            return {}
        shape = (workload.heads, 1, self.convolution, 1)
        return {"convolution": OwnParameter(shape, std=(3 * self.convolution) ** -0.5)}

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else BIAS if workload.position_bias else None

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return workload.length <= self.m and not self.convolution

    def exact_limit(self) -> Method | None:
        return replace(self, m=2048, convolution=0)

    def scaled_down(self) -> Method:
        return replace(self, m=8)

    def state_bytes(self, workload: Workload) -> int:
        """F, A and its pseudoinverse in one layer."""
        m = min(self.m, workload.length)
        numbers = workload.batch * workload.heads * (workload.length * m + 2 * m**2)
        return workload.bytes_per_element * numbers

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        n, valid = query.shape[2], call.sequence.valid
        lengths = torch.tensor([n]) if valid is None else valid.sum(1)
        short = (lengths <= self.m)[:, None, None, None]
        if bool(short.all()):
            output = exact_attention(query, key, value, call)
        else:
            output = self._through_landmarks(query, key, value, call)
            if bool(short.any()):
                output = exact_attention(query, key, value, call).where(short, output)
        if not self.convolution:
            return output
        weight, (value,) = call.parameters["convolution"], per_head(query, value)
        if valid is not None:
            value = value.masked_fill(~valid[:, None, :, None], 0)
        margins = self.convolution // 2, 0
        return output + conv2d(value, weight, padding=margins, groups=len(weight))

    def _through_landmarks(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        q, k, v = (widened(x) for x in (query, *per_head(query, key, value)))
        landmarks = segment_means(call.sequence, self.m, q, k)
        front, middle = (
            (x @ landmarks[1].transpose(2, 3) * call.scale).softmax(-1) for x in (q, landmarks[0])
        )
        mask = call.sequence.key_bias(q.dtype)
        back = scaled_dot_product_attention(landmarks[0], k, v, mask, scale=call.scale)
        output = front @ (pseudoinverse(middle, self.iterations) @ back)
        return output.to(query.dtype)


def pseudoinverse(matrix: Tensor, iterations: int) -> Tensor:
    """Approximate pseudoinverse of each matrix [..., m, m] of non-negative numbers (§3.3)."""
    norms = matrix.sum(-2).amax(-1) * matrix.sum(-1).amax(-1)
    inverse = matrix.transpose(-1, -2) / norms[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = inverse @ (13 * identity - product @ inner) / 4
    return inverse
