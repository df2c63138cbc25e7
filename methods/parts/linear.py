"""Linear attention: softmax's exp(q·k) replaced by φ(q)·φ(k) with positive features φ.

Features are given as their logs, and sums are kept relative to the largest key of each feature. So
nothing overflows and no denominator is 0. A small number added to denominators isn't needed; in a
causal model its relative size would depend on later keys. O(n m d) time; chunks of tokens update
one running state of m (d + 1) numbers. Shapes: B batch, H heads, n tokens, m features, d value
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import AttentionCall, KVCache, Method, Unsupported, Workload
from methods.parts.attention import per_head, widened
from methods.parts.partial import Partial

BIAS = "linear attention computes no scores that a position bias could be added to"
CHUNK = 128
"""Tokens at a time."""


@dataclass(frozen=True)
class FeatureSums:
    """Sums over keys, each feature relative to exp(largest).

    largest  [B, H, 1, m]: log of the largest key
    sums     [B, H, m, d + 1]: Σ φ(k) (v, 1)ᵀ / exp(largest)
    """

    largest: Tensor
    sums: Tensor

    @classmethod
    def of(cls, log_key: Tensor, value: Tensor) -> FeatureSums:
        """The sums for log_key [B, H, k, m] and value [B, H, k, d]."""
        largest = log_key.detach().amax(2, keepdim=True)
        features = (log_key - largest).exp_()
        return cls(largest, features.transpose(2, 3) @ pad(value, (0, 1), value=1))

    def plus(self, other: FeatureSums | None) -> FeatureSums:
        """The sums over the keys of both."""
        if other is None:
            return self
        largest = torch.maximum(self.largest, other.largest)
        mine, its = ((x.largest - largest).exp().transpose(2, 3) for x in (self, other))
        return FeatureSums(largest, mine * self.sums + its * other.sums)

    def read(self, log_query: Tensor) -> Partial:
        """The attention of queries with these log-features [B, H, q, m]."""
        logs = log_query + self.largest
        most = logs.detach().amax(-1, keepdim=True)
        read = logs.sub_(most).exp_() @ self.sums
        output, total = read[..., :-1], read[..., -1:]
        return Partial(output / total, most + total.log())


@dataclass(frozen=True)
class LinearMethod(Method):
    """A method defined by its features. New tokens of a causal model read the running state. Raises
    Unsupported where scores have a position bias; no attention dropout."""

    def log_features(self, x: Tensor, call: AttentionCall) -> Tensor:
        """The logs of the features of queries or keys [B, H, k, d]: [B, H, k, m]."""
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
        the call: [B, H, q, d], and the sums over all of them. Keys count by their multiplicity, and
        padding doesn't count; causal queries are the last q tokens and read no later key."""
        if call.bias is not None:
            raise Unsupported(BIAS)
        q, k, v = (widened(x) for x in (query, *per_head(query, key, value)))
        key_bias = call.sequence.key_bias(k.dtype)
        if key_bias is not None:
            key_bias = key_bias[..., -k.shape[2] :].transpose(2, 3)
        causal, outputs = call.sequence.causal, []
        before = k.shape[2] - q.shape[2] if causal else k.shape[2]  # keys that all queries read

        def logs(tokens: slice) -> Tensor:
            features = self.log_features(k[:, :, tokens], call)
            return features if key_bias is None else features + key_bias[:, :, tokens]

        for tokens in _chunks(before):
            past = FeatureSums.of(logs(tokens), v[:, :, tokens]).plus(past)
        for rows in _chunks(q.shape[2]):
            log_query = self.log_features(q[:, :, rows], call)
            part = past.read(log_query) if past is not None else None
            if causal:
                tokens = slice(rows.start + before, rows.stop + before)
                log_key, values = logs(tokens), v[:, :, tokens]
                own = _within(log_query, log_key, values)
                part = own if part is None else own.merged(part)
                past = FeatureSums.of(log_key, values).plus(past)
            assert part is not None
            outputs.append(part.output)
        assert past is not None
        return torch.cat(outputs, 2).to(query.dtype), past

    def unsupported(self, workload: Workload) -> str | None:
        return BIAS if workload.position_bias else None

    def state_bytes(self, workload: Workload) -> int:
        """One layer's sums, and a chunk's features; in a causal model also a chunk's scores."""
        m, d = self.feature_count(workload.head_size), workload.head_size
        tokens = min(CHUNK, workload.length)
        numbers = m * (d + 1) + 2 * tokens * m + workload.causal * tokens**2
        return workload.bytes_per_element * workload.batch * workload.heads * numbers

    def kv_cache(self, workload: Workload) -> KVCache:
        return LinearCache(self)


@dataclass
class LinearCache:
    """A decoder's past tokens as m (d + 1) numbers a head in each layer, without keys and
    values."""

    method: LinearMethod
    sums: dict[int, FeatureSums] = field(default_factory=dict)
    read_bytes: int = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output, self.sums[call.layer] = self.method.attend_after(None, query, key, value, call)
        return output

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.prefill(query, key, value, call)  # it also computes the sums

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        past = self.sums[call.layer]
        self.read_bytes += past.largest.nbytes + past.sums.nbytes
        output, self.sums[call.layer] = self.method.attend_after(past, query, key, value, call)
        return output

    def held(self) -> Sequence[Tensor]:
        return [x for past in self.sums.values() for x in (past.largest, past.sums)]


def _within(log_query: Tensor, log_key: Tensor, value: Tensor) -> Partial:
    """Causal attention within a chunk, with each pair's φ(q)·φ(k)."""
    sizes = [x.detach().amax(-1, keepdim=True) for x in (log_query, log_key)]
    queries, keys = (log_query - sizes[0]).exp(), (log_key - sizes[1]).exp()
    products = (queries @ keys.transpose(2, 3)).clamp(min=torch.finfo(queries.dtype).tiny)
    scores = products.log() + sizes[0] + sizes[1].transpose(2, 3)
    future = torch.ones(scores.shape[2:], dtype=torch.bool, device=value.device).triu(1)
    return Partial.from_scores(scores.masked_fill(future, torch.finfo(scores.dtype).min), value)


def _chunks(n: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]
