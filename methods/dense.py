"""Exact attention with a choice of kernel: the base of every method whose layers attend to all of
their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods import kernels
from methods.attention import bias_by_distance, exact_attention
from methods.base import AttentionCall, Method
from methods.parameters import check_choice


@dataclass(frozen=True)
class DenseAttention(Method):
    """Exact attention in every layer: O(n²) time, O(n) memory.

    kernel    "torch": torch's fused attention; "native": the kernel of methods/kernels where it
              can run, which is not in training
    products  of the native kernel: "float32", or "bfloat16" (rounded, accumulated in float32)
    """

    kernel: str = "torch"
    products: str = "float32"

    def __post_init__(self) -> None:
        check_choice("kernel", self.kernel, kernels.KERNELS)
        check_choice("products", self.products, kernels.PRODUCTS)
        if self.products != "float32" and self.kernel != "native":
            raise ValueError(f"products={self.products} needs kernel=native")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if self.kernel == "torch":
            return exact_attention(query, key, value, call)
        result = _native(query, key, value, call, self.products)
        kernels.note(self, result, self.products)
        return exact_attention(query, key, value, call) if isinstance(result, str) else result


def _native(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, products: str
) -> Tensor | str:
    """`exact_attention` by the native kernel, or the reason why it can't run."""
    bias = bias_by_distance(call, query.shape[2], query.device)
    if isinstance(bias, str):
        return bias
    if call.dropout:
        return "dropout"
    key_bias, causal = call.sequence.key_bias(torch.float32), call.sequence.causal
    return kernels.dense(query, key, value, call.scale, key_bias, products, causal, bias)
