"""LARA: linear randomized attention (Zheng et al., arXiv 2204.04667, §4).

With ξ(x, ω) = exp(scale·(ω·x - |x|²/2)) and c proposals centred at μ_c = mean query + mean key of
the c-th stretch of tokens, a query reads

    Σ_c s_c Σ_m softmax_m(log ξ(k_m, ω_c)) v_m,  s_c ∝ α_c ξ(q, ω_c) Σ_m ξ(k_m, ω_c) / ξ(μ_c, ω_c)

α_c = ξ(μ_c, ω_c) / Σ_c' ξ(μ_c', ω_c) + t_c - mean_c t, at least 1e-8, where t_c(q) is the softmax
over all queries of mean query c · q. O(n·c).

Official code: HKUNLP/efficient-attention (Apache-2.0).

Differs from the official code: stretches are of valid tokens, as even as can be, and empty ones are
left out (there padding is averaged in as zeros). There a linear layer and a norm come before the
means of a sequence (here with pooling="layers"), and after the means of an image, which are over
squares. According to its authors, the form without them, the default here, is meant for weights
trained with softmax, and is weaker if weights are trained from scratch. ω = μ always; the paper
adds noise to it in training. No dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from methods.base import AttentionCall, Method, OwnParameter, Unsupported, Workload
from methods.parts.attention import per_head
from methods.parts.blocks import segment_weights
from methods.parts.parameters import Positive

CAUSAL = "LARA is here for encoders: its proposals are means over all tokens"
BIAS = "LARA computes no score that a position bias could be added to"
LEAST = 1e-8
PARTS = "weight", "bias", "gain", "shift"
"""Of a linear layer and the norm after it."""


@dataclass(frozen=True)
class LARA(Method):
    """c        proposals (official: 49)
    pooling  "means" of queries and keys, or "layers": means after a learned linear layer and a norm
             for each, shared by all heads, as in the official code for sequences

    Raises Unsupported for a causal sequence and a position bias.
    """

    c: Positive = 49
    pooling: Literal["means", "layers"] = "means"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        queries, keys, values = (x.to(dtype) for x in (query, *per_head(query, key, value)))
        stretches = segment_weights(call.sequence, queries, self.c)[:, None]  # [B or 1, 1, c, n]
        filled = stretches.sum(-1) > 0

        def pooled(x: Tensor, name: str) -> Tensor:
            if self.pooling == "layers":
                weight, bias, gain, shift = (
                    call.parameters[f"{name}_{part}"].to(dtype) for part in PARTS
                )
                x = layer_norm(linear(x, weight, bias), x.shape[-1:], gain, shift)
            return stretches @ x

        means = pooled(queries, "query")
        centre = means + pooled(keys, "key")  # μ = ω
        bias = call.sequence.key_bias(dtype)

        def log_xi(omega: Tensor, x: Tensor) -> Tensor:
            return call.scale * (omega @ x.mT - x.pow(2).sum(-1)[..., None, :] / 2)

        of_keys = log_xi(centre, keys) if bias is None else log_xi(centre, keys) + bias
        lowest = torch.finfo(dtype).min
        between = log_xi(centre, centre).masked_fill(~filled[..., None, :], lowest)
        own = between.diagonal(dim1=-2, dim2=-1)
        share = (own - between.logsumexp(-1)).exp()  # [B, H, c]
        t = means @ queries.mT * call.scale
        if call.sequence.valid is not None:
            t = t.masked_fill(~call.sequence.valid[:, None, None], lowest)
        t = t.softmax(-1) * filled[..., None]  # [B, H, c, n]
        mean = t.sum(-2, keepdim=True) / filled.sum(-1)[..., None, None].clamp(min=1)
        alpha = (share[..., None] + t - mean).clamp(min=LEAST)
        total = alpha.log() + log_xi(centre, queries) + (of_keys.logsumexp(-1) - own)[..., None]
        weights = total.masked_fill(~filled[..., None], lowest).softmax(-2)
        read = weights.mT @ (of_keys.softmax(-1) @ values)
        return read.to(query.dtype)

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        """Their initial values are the official code's."""
        if self.pooling == "means":
            return {}
        size = workload.head_size
        parts = (
            OwnParameter((size, size), std=0.02),
            OwnParameter((size,)),
            OwnParameter((size,), mean=1.0),
            OwnParameter((size,)),
        )
        return {
            f"{name}_{part}": one
            for name in ("query", "key")
            for part, one in zip(PARTS, parts, strict=True)
        }

    def scaled_down(self) -> Method:
        return replace(self, c=4)

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else BIAS if workload.position_bias else None

    def state_bytes(self, workload: Workload) -> int:
        """Scores of the proposals with all keys and with all queries, t and α of one layer; with
        "layers" also the layers' outputs for queries and keys."""
        layers = 2 * workload.head_size if self.pooling == "layers" else 0
        numbers = workload.batch * workload.heads * workload.length * (4 * self.c + layers)
        return max(4, workload.bytes_per_element) * numbers
