"""FNet: Fourier transforms mix the tokens (Lee-Thorp et al., arXiv 2105.03824, §3.2).

The sub-layer is Re(FFT over the tokens and over the D features), unnormalised; there are no
queries, keys or values. O(n·D·(log n + log D)).

Official code: f_net of google-research/google-research (Apache-2.0).

Differs from the official code: each row is transformed without its padding; there padding is
transformed like any token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import AttentionCall, Method, Sublayer, Unsupported, Workload

CAUSAL = "FNet is for encoders: its transform mixes each token with those after it"
BIAS = "FNet computes no score that a position bias could be added to"


@dataclass(frozen=True)
class FNet(Method):
    """Raises Unsupported for a causal sequence and for a position bias."""

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        valid = call.sequence.valid
        if valid is None:
            return transformed(hidden)
        output = torch.zeros_like(hidden)
        for length in valid.sum(1).unique().tolist():
            rows = valid & (valid.sum(1, keepdim=True) == length)
            mixed = transformed(hidden[rows].view(-1, length, hidden.shape[-1]))
            output = output.masked_scatter(rows[..., None], mixed)
        return output

    def unused(self) -> frozenset[str]:
        return frozenset({"query", "key", "value", "output"})

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else BIAS if workload.position_bias else None

    def state_bytes(self, workload: Workload) -> int:
        """The complex transform of one layer, in float32 or wider, and its real part."""
        numbers = workload.batch * workload.length * workload.hidden_size
        return numbers * (2 * max(4, workload.bytes_per_element) + workload.bytes_per_element)


def transformed(hidden: Tensor) -> Tensor:
    """Re(FFT) of hidden [B, n, D] over its last two dimensions; half precision is computed in
    float32."""
    exact = hidden if hidden.dtype == torch.float64 else hidden.float()
    mixed: Tensor = torch.fft.fft2(exact).real.to(hidden.dtype)
    return mixed
