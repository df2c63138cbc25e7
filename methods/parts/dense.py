"""Exact attention with a choice of kernel, the base of methods whose layers attend to all of their
tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, Method
from methods.parts import widths
from methods.parts.attention import bias_by_distance, exact_attention, has_features

SHORTEST = 256
"""Tokens from which kernel="auto" is native. With fewer a call's fixed cost counts: at 64 tokens it
took up to 1.8 times torch's time, from 256 on no more than torch."""


@dataclass(frozen=True)
class NativeMethod(Method):
    """A method that may run on the native kernels, and records with `kernels.note` where it did.
    Raises ValueError where the variable BENCH_KERNELS names no vectors of this CPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        widths.chosen()

    def exact_twin(self) -> Method | None:
        products: kernels.Products = getattr(self, "products", "float32")
        return DenseAttention("native", products) if kernels.ran_natively(self) else None


@dataclass(frozen=True)
class DenseAttention(NativeMethod):
    """Exact attention in every layer: O(n²) time, O(n) memory.

    kernel    "torch": torch's fused attention; "native": the kernel of methods/kernels where it can
              run, not in training; "auto": native from 256 tokens on, else torch
    products  of the native kernel: "float32", or "bfloat16" (rounded, accumulated in float32)
    """

    kernel: kernels.Kernel = "auto"
    products: kernels.Products = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.products != "float32" and self.kernel == "torch":
            raise ValueError(f"products={self.products} needs kernel=auto or native")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return attend_exactly(self, query, key, value, call, self.kernel, self.products)


def attend_exactly(
    method: Method, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, kernel: str,
    products: str = "float32",
) -> Tensor:  # fmt: skip
    """Exact attention of one layer with `kernel` and `products` as in `DenseAttention`; the method
    records which kernel ran."""
    result: Tensor | str = kernels.ASKED
    if kernel == "auto" and key.shape[2] < SHORTEST:
        result = f"fewer than {SHORTEST} tokens"
    elif kernel != "torch":
        result = _native(query, key, value, call, products)
    kernels.note(method, result, products, query)
    return exact_attention(query, key, value, call) if isinstance(result, str) else result


def _native(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, products: str
) -> Tensor | str:
    """`exact_attention` by the native kernel, or the reason why it can't run."""
    if call.model_attention is not None:
        return "the model's attention isn't exact"
    if has_features(call, query.shape[2]):
        return "windows, soft caps and sinks"
    bias = bias_by_distance(call, query.shape[2], query.device)
    if isinstance(bias, str):
        return bias
    if call.dropout:
        return "dropout"
    key_bias, causal = call.sequence.key_bias(torch.float32), call.sequence.causal
    return kernels.dense(query, key, value, call.scale, key_bias, products, causal, bias)
