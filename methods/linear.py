"""Linear attention: softmax's exp(q·k) replaced by φ(q)·φ(k) with positive features φ.

Features are given as their logs, and sums are kept relative to the largest key of each feature. So
nothing overflows, no denominator is zero, and none needs a small number added, which in a causal
model would show through it the largest of the keys to come. O(n m d) time; a causal sequence is
walked in chunks over one running state of m (d + 1) numbers.
Shapes: B batch, H heads, n tokens, m features, d value size.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.attention import per_head
from methods.base import AttentionCall, DecodingState, Method, Unsupported, Workload
from methods.partial import Partial, widened

BIAS = "linear attention computes no scores that a position bias could be added to"
CHUNK = 128
"""Tokens of a causal sequence at a time."""


@dataclass(frozen=True)
class FeatureSums:
    """Sums over keys, for each feature relative to exp(largest).

    largest  [B, H, 1, m]: log of the largest key
    keys     [B, H, 1, m]: Σ φ(k) / exp(largest)
    values   [B, H, m, d]: Σ φ(k) vᵀ / exp(largest)
    """

    largest: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def of(cls, log_key: Tensor, value: Tensor) -> FeatureSums:
        """log_key [B, H, k, m] and value [B, H, k, d]."""
        largest = log_key.detach().amax(2, keepdim=True)
        features = (log_key - largest).exp()
        return cls(largest, features.sum(2, keepdim=True), features.transpose(2, 3) @ value)

    def plus(self, other: FeatureSums | None) -> FeatureSums:
        """The sums over the keys of both."""
        if other is None:
            return self
        largest = torch.maximum(self.largest, other.largest)
        mine, its = ((x.largest - largest).exp() for x in (self, other))
        return FeatureSums(
            largest,
            mine * self.keys + its * other.keys,
            mine.transpose(2, 3) * self.values + its.transpose(2, 3) * other.values,
        )

    def read(self, log_query: Tensor) -> Partial:
        """What queries with these features [B, H, q, m] read."""
        logs = log_query + self.largest
        most = logs.detach().amax(-1, keepdim=True)
        features = (logs - most).exp()
        total = (features * self.keys).sum(-1, keepdim=True)
        return Partial(features @ self.values / total, most + total.log())


@dataclass(frozen=True)
class LinearMethod(Method):
    """A method given by its features. New tokens of a causal model read the running state. Raises
    Unsupported where scores have a position bias; no attention dropout."""

    def log_features(
        self, query: Tensor, key: Tensor, call: AttentionCall
    ) -> tuple[Tensor, Tensor]:
        """Of query [B, H, q, d] and key [B, H, k, d]: the logs of their features, [B, H, q, m] and
        [B, H, k, m]."""
        raise NotImplementedError

    def feature_count(self, head_size: int) -> int:
        raise NotImplementedError

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self.attend_after(None, query, key, value, call)[0]

    def attend_after(
        self,
        past: FeatureSums | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> tuple[Tensor, FeatureSums]:
        """Attention to `past` and to key, value [B, H or a divisor, k, d], the last k tokens of
        the call: [B, H, q, d], and the sums over all of them. Keys count by their multiplicity,
        padding not at all; causal queries are the last q tokens and read no later key."""
        if call.bias is not None:
            raise Unsupported(BIAS)
        key, value = per_head(query, key, value)
        log_query, log_key = self.log_features(widened(query), widened(key), call)
        key_bias = call.sequence.key_bias(log_key.dtype)
        if key_bias is not None:
            log_key = log_key + key_bias[..., -key.shape[2] :].transpose(2, 3)
        value, q = widened(value), query.shape[2]
        before = key.shape[2] - q if call.sequence.causal else key.shape[2]
        if before:
            past = FeatureSums.of(log_key[:, :, :before], value[:, :, :before]).plus(past)
        if not call.sequence.causal:
            assert past is not None
            return past.read(log_query).output.to(query.dtype), past
        outputs = []
        last = log_query, log_key[:, :, before:], value[:, :, before:]
        chunks = (x.split(CHUNK, 2) for x in last)
        for queries, keys, values in zip(*chunks, strict=True):
            part = _within(queries, keys, values)
            outputs.append(part if past is None else part.merged(past.read(queries)))
            past = FeatureSums.of(keys, values).plus(past)
        assert past is not None
        return torch.cat([part.output for part in outputs], 2).to(query.dtype), past

    def unsupported(self, workload: Workload) -> str | None:
        return BIAS if workload.position_bias else None

    def state_bytes(self, workload: Workload) -> int:
        """One layer's sums, and its features of all tokens; of a causal model those of a chunk,
        and the chunk's scores."""
        m, d = self.feature_count(workload.head_size), workload.head_size
        tokens = min(CHUNK, workload.length) if workload.causal else workload.length
        numbers = m * (d + 1) + 2 * tokens * m + workload.causal * tokens**2
        return workload.bytes_per_element * workload.batch * workload.heads * numbers

    def decodes(self) -> bool:
        return True

    def decoding_state(self) -> DecodingState:
        return LinearState(self)


class LinearState:
    """A decoder's past in m (d + 1) numbers a head, for each layer."""

    def __init__(self, method: LinearMethod) -> None:
        self.method = method
        self.sums: dict[int, FeatureSums] = {}
        self.tokens: dict[int, int] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """query [B, H, t, d], the last t tokens; key and value [B, H or a divisor, n, d], all."""
        first = self.tokens.get(call.layer, 0)
        causal = dataclasses.replace(call, sequence=call.sequence.replace(causal=True))
        output, self.sums[call.layer] = self.method.attend_after(
            self.sums.get(call.layer), query, key[:, :, first:], value[:, :, first:], causal
        )
        self.tokens[call.layer] = key.shape[2]
        return output


def _within(log_query: Tensor, log_key: Tensor, value: Tensor) -> Partial:
    """Causal attention within a chunk, with each pair's φ(q)·φ(k)."""
    sizes = [x.detach().amax(-1, keepdim=True) for x in (log_query, log_key)]
    queries, keys = (log_query - sizes[0]).exp(), (log_key - sizes[1]).exp()
    products = (queries @ keys.transpose(2, 3)).clamp(min=torch.finfo(queries.dtype).tiny)
    scores = products.log() + sizes[0] + sizes[1].transpose(2, 3)
    future = torch.ones(scores.shape[2:], dtype=torch.bool, device=value.device).triu(1)
    return Partial.from_scores(scores.masked_fill(future, torch.finfo(scores.dtype).min), value)
