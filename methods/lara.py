"""LARA: linear randomized attention (Zheng et al., arXiv 2204.04667, §4).

With ξ(x, ω) = exp(scale·(ω·x - |x|²/2)) and c proposals centred at μ_c = mean query + mean key of
the c-th stretch of tokens, a query reads

    Σ_c s_c Σ_m softmax_m(log ξ(k_m, ω_c)) v_m,  s_c ∝ α_c ξ(q, ω_c) Σ_m ξ(k_m, ω_c) / ξ(μ_c, ω_c)

α_c = ξ(μ_c, ω_c) / Σ_c' ξ(μ_c', ω_c) + t_c - mean_c t, at least 1e-8, where t_c(q) is the softmax
over all queries of mean query c · q. O(n·c).

Differs from the official code: stretches are of valid tokens, as even as can be, and empty ones are
left out (there padding is averaged in as zeros; the default pools squares of pictures, and may have
weights of its own, whose form wasn't found in the paper's text). ω = μ always; the paper adds noise
to it in training. No dropout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods.base import AttentionCall, Method, Unsupported, Workload
from methods.parts.attention import per_head
from methods.parts.parameters import Positive
from methods.parts.pooling import segment_weights

CAUSAL = "LARA is here for encoders: its proposals are means over all tokens"
BIAS = "LARA computes no score that a position bias could be added to"
LEAST = 1e-8


@dataclass(frozen=True)
class LARA(Method):
    """c  proposals (official: 49)

    Raises Unsupported for a causal sequence and a position bias.
    """

    c: Positive = 49

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        queries, keys, values = (x.to(dtype) for x in (query, *per_head(query, key, value)))
        pooling = segment_weights(call.sequence, queries, self.c)[:, None]  # [B or 1, 1, c, n]
        filled = pooling.sum(-1) > 0
        means = pooling @ queries
        centre = means + pooling @ keys  # μ = ω
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

    def scaled_down(self) -> Method:
        return replace(self, c=4)

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else BIAS if workload.position_bias else None

    def state_bytes(self, workload: Workload) -> int:
        """Scores of the proposals with all keys and with all queries, t and α of one layer."""
        scores = workload.batch * workload.heads * workload.length * self.c
        return 4 * max(4, workload.bytes_per_element) * scores
