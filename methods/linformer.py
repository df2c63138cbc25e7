"""Linformer: keys and values projected to k positions (Wang et al., arXiv 2006.04768, §4, eq. 7).

softmax(q (E K)ᵀ · scale) (F V) with learned E, F [k, n]: O(n·k), for inputs of at most n tokens.

Official codes: google-research/long-range-arena and mlpen/Nystromformer, which has LRA in PyTorch
(both Apache-2.0).

Differs from the official codes: by default each head has its projections, as in the paper's
equation (in LRA's code all heads share one). A token's column is its number among its row's valid
tokens, and padding has none (LRA's code ignores its masks). LRA's initial values are much smaller
(`init`): in its encoder with k = 16, scores of 2,000 tokens have an initial standard deviation of
0.5, with the paper's values 3.8. Nyströmformer's harness uses 0.02 for any k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods.base import AttentionCall, Method, OwnParameter, Unsupported, Workload
from methods.parts.attention import per_head
from methods.parts.parameters import Positive

CAUSAL = "Linformer is for encoders: each projected key is a sum over all tokens"
BIAS = "Linformer's projected keys have no position for a position bias"


@dataclass(frozen=True)
class Linformer(Method):
    """The projections are normally distributed at first.

    k        projected positions
    n        length of the longest input
    sharing  "none": E and F of each head; "headwise": E and F for all heads of a layer;
             "key-value": one E = F for all heads of a layer
    init     standard deviation: "paper", 1/√k (§4, theorem 2); "lra", √(2 / (n + k)), the variance
             of LRA's (Glorot's uniform) values

    Raises Unsupported for a causal sequence, a position bias and more than n tokens.
    """

    k: Positive = 256
    n: Positive = 4096
    sharing: Literal["none", "headwise", "key-value"] = "none"
    init: Literal["paper", "lra"] = "paper"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        reason = self._reason(call.sequence.causal, call.bias is not None, key.shape[2])
        if reason:
            raise Unsupported(reason)
        key, value = per_head(query, key, value)
        e, f = (self._columns(name, key, call) for name in ("E", "F"))
        return scaled_dot_product_attention(
            query, e @ key, f @ value, dropout_p=call.dropout, scale=call.scale
        )

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        heads = workload.heads if self.sharing == "none" else 1
        std = self.k**-0.5 if self.init == "paper" else (2 / (self.n + self.k)) ** 0.5
        each = OwnParameter((heads, self.k, self.n), std=std)
        return {"E": each} if self.sharing == "key-value" else {"E": each, "F": each}

    def scaled_down(self) -> Method:
        return replace(self, k=8, n=128)

    def unsupported(self, workload: Workload) -> str | None:
        return self._reason(workload.causal, workload.position_bias, workload.length)

    def state_bytes(self, workload: Workload) -> int:
        """The projected keys and values of one layer (the n×k scores are fused)."""
        projected = workload.batch * workload.heads * self.k * workload.head_size
        return 2 * workload.bytes_per_element * projected

    def _reason(self, causal: bool, biased: bool, n: int) -> str | None:
        longer = f"Linformer's projections are for at most n={self.n} tokens, not {n}"
        return CAUSAL if causal else BIAS if biased else longer if n > self.n else None

    def _columns(self, name: str, key: Tensor, call: AttentionCall) -> Tensor:
        """[B or 1, H or 1, k, n]: the columns of the keys; zeros at padding."""
        own = call.parameters.get(name, call.parameters["E"])
        valid, counts = call.sequence.valid, call.sequence.log_multiplicity
        columns = own[None, :, :, : key.shape[2]]
        if valid is not None:
            at = (valid.cumsum(1) - 1).clamp(min=0)
            columns = own[:, :, at].movedim(2, 0) * valid[:, None, None, :]
        return columns if counts is None else columns * counts.exp()[:, None, None, :].to(key.dtype)
