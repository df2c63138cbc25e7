"""Synthesizer: attention weights without queries and keys (Tay et al., arXiv 2005.00743, §3).

random       softmax(R) V with a learned R [H, n, n] (§3.1.2)
factorised   R = R₁ R₂ᵀ with R₁, R₂ [H, n, k] (§3.1.4)
dense        row i of R is W₂ relu(W₁ xᵢ + b₁) + b₂, of length n, for each head (§3.1.1)

O(n²) in time, like attention, without a product of queries and keys. For inputs of at most n
tokens; a token's row and column are its number among its row's valid tokens.

Official code: google-research/long-range-arena (Apache-2.0).

Differs from the official code (LRA's): padding is masked in every form (there only if products of
queries and keys are added), scores are R alone (there R + q kᵀ by default), and each head has a W₂
(there all heads share one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import dropout, relu

from methods.base import (
    AttentionCall,
    KVCache,
    Method,
    OwnParameter,
    Sublayer,
    Unsupported,
    Workload,
)
from methods.parts.attention import (
    add_key_bias,
    exact_attention,
    mask_future,
    per_head,
    positions_of,
)
from methods.parts.kv_cache import FullCache
from methods.parts.parameters import Positive

DECODING = "a dense Synthesizer's weights need the hidden states, which a KV cache has not"


@dataclass(frozen=True)
class Synthesizer(Method):
    """R, or its factors, are normally distributed at first.

    form  random, factorised or dense
    k     rank of the factorised R (the paper's)
    n     length of the longest input
    init  standard deviation: "paper", 1 for R (k^-¼ for its factors), 1/√(inputs) for W₁ and W₂,
          since the paper gives none; "lra", the variances of LRA's (Glorot's uniform) values, with
          the fans of all heads together: R and its softmax are nearly uniform at first

    A decoder's new token has the last row of R. Raises Unsupported for more than n tokens.
    """

    form: Literal["random", "factorised", "dense"] = "factorised"
    k: Positive = 8
    n: Positive = 4096
    init: Literal["paper", "lra"] = "paper"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention of the last tokens, one for each query."""
        places = self._places(call, value)
        own, rows = call.parameters, places[:, -query.shape[2] :]
        if self.form == "factorised":
            r1, r2 = own["R1"][:, rows].transpose(0, 1), own["R2"][:, places].transpose(0, 1)
            if r1.shape[2] == r2.shape[2] and call.bias is None:
                size = (len(query), *r1.shape[1:])
                r1, r2 = r1.expand(size), r2.expand(size)
                return exact_attention(r1, r2, per_head(query, value)[0], replace(call, scale=1.0))
            return self._read(r1 @ r2.mT, query, value, call)
        scores = own["R"][:, rows[:, :, None], places[:, None, :]].transpose(0, 1)
        return self._read(scores, query, value, call)

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        if self.form != "dense":
            return sublayer(hidden)
        own, value, places = call.parameters, sublayer.value(hidden), self._places(call, hidden)
        inner = relu(torch.einsum("bnd,hed->bhne", hidden, own["W1"]) + own["b1"][:, None])
        w2 = own["W2"][:, places].transpose(0, 1)  # [B or 1, H, n keys, D]
        scores = inner @ w2.mT + own["b2"][:, places].transpose(0, 1)[:, :, None]
        return sublayer.output(self._read(scores, inner, value, call))

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        heads, size, n = workload.heads, workload.hidden_size, self.n

        def std(paper: float, fans: int) -> float:
            """Standard deviation of R or a weight; `fans`: inputs and outputs of all heads."""
            return paper if self.init == "paper" else (2 / fans) ** 0.5

        if self.form == "random":
            return {"R": OwnParameter((heads, n, n), std=std(1.0, 2 * heads * n))}
        if self.form == "factorised":
            one = OwnParameter((heads, n, self.k), std=std(self.k**-0.25, heads * (n + self.k)))
            return {"R1": one, "R2": one}
        inner = workload.head_size
        return {
            "W1": OwnParameter((heads, inner, size), std=std(size**-0.5, size + heads * inner)),
            "b1": OwnParameter((heads, inner)),
            "W2": OwnParameter((heads, n, inner), std=std(inner**-0.5, inner + n)),
            "b2": OwnParameter((heads, n)),
        }

    def unused(self) -> frozenset[str]:
        return frozenset({"query", "key"})

    def kv_cache(self, workload: Workload) -> KVCache:
        """A cache of values only: `attend`, by which new tokens read, doesn't use keys."""
        return Values(self.attend, self.attend)

    def scaled_down(self) -> Method:
        return replace(self, n=128)

    def unsupported(self, workload: Workload) -> str | None:
        if self.form == "dense" and workload.causal:
            return DECODING
        return self._longer(workload.length)

    def state_bytes(self, workload: Workload) -> int:
        """The scores and weights of one layer; a factorised R is gathered, and attention is
        fused."""
        if self.form == "factorised" and not workload.position_bias:
            return 2 * workload.bytes_per_element * workload.heads * workload.length * self.k
        scores = workload.batch * workload.heads * workload.length**2
        return 2 * workload.bytes_per_element * scores

    def _longer(self, n: int) -> str | None:
        return f"Synthesizer's R is for at most n={self.n} tokens, not {n}" if n > self.n else None

    def _places(self, call: AttentionCall, tokens: Tensor) -> Tensor:
        """[B or 1, n]: the number of each token among its row's valid tokens."""
        n, valid = tokens.shape[-2], call.sequence.valid
        if reason := self._longer(n):
            raise Unsupported(reason)
        if valid is None:
            return torch.arange(n, device=tokens.device)[None]
        return (valid.cumsum(1) - 1).clamp(min=0)

    def _read(self, scores: Tensor, query: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """softmax(scores [B or 1, H, q, n] + biases) v for the q last tokens."""
        q, n = scores.shape[-2:]
        (value,) = per_head(query, value)
        if call.bias is not None:
            positions, _ = positions_of(call.sequence, n, value.device)
            scores = scores + call.bias(positions[:, -q:], positions).to(scores.dtype)
        key_bias = call.sequence.key_bias(scores.dtype)
        if key_bias is not None:
            scores = add_key_bias(scores, key_bias)
        if call.sequence.causal:
            scores = mask_future(scores, n - q)
        return dropout(scores.softmax(-1), call.dropout) @ value


class Values(FullCache):
    """Keeps the value of every token; keys have no channels."""

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.attention(query, key[..., :0], value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        super().take(query, key[..., :0], value, call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return super().decode(query, key[..., :0], value, call)
