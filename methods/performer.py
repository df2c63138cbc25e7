"""Performer (Choromanski et al., arXiv 2009.14794): softmax attention by random features (FAVOR+).

With w of a standard normal distribution, exp(x·y) = E[φ_w(x) φ_w(y)] for the positive features
φ_w(x) = exp(w·x - |x|²/2) (§2.3, lemma 1), here with x = q √scale and y = k √scale. Their mean over
m directions, orthogonal within each d (§2.4), makes attention linear in n (§2.2); its numerator
and denominator are unbiased, with an error of order m^(-1/2).

Official codes: google-research/google-research and google-research/long-range-arena (both
Apache-2.0).

Differs from official code:
- Nothing is added to the features unless `epsilon` is given. Google's code adds 10⁻⁴, LRA's 10⁻⁶,
  to features that are divided by the largest one, for a query its own, for keys the largest of all
  positions. So a causal model would see later keys, and `epsilon` is refused there. With random
  normal queries and keys (2,048 tokens of size 64, m = 256) the output's relative error is about 5
  without, 2.8 with 10⁻⁶ and 0.8 with 10⁻⁴, which makes the weights nearly equal. LRA's code also
  adds 2·10⁻⁶ to denominators below 10⁻⁶.
- Directions are fixed by the seed and the layer; there they are drawn again in training.
- LRA's default is features="relu" with m=null and scaled=false; with softmax, which it uses on
  ListOps only, it has 2 features.
- In Nyströmformer's harness padding takes part in the denominator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from methods.base import AttentionCall, Method, Unsupported, Workload
from methods.parts.attention import per_head, widened
from methods.parts.linear import BIAS, FeatureSums, LinearMethod
from methods.parts.parameters import NonNegative, Positive, Range

CAUSAL = "Performer's epsilon is relative to the largest of all keys, a causal model's future too"
DRAWN = 1_000_003  # the seeds of two layers differ by this


@dataclass(frozen=True)
class Performer(LinearMethod):
    """FAVOR+.

    features  "softmax", or "relu", the generalised kernel φ(x) = relu(w·x) + offset (§2.2), with
              which weights must be trained
    m         random features; None, for "relu" only: relu(x) + offset itself
    offset    offset of "relu"
    scaled    false (LRA's "relu"): queries and keys are not multiplied by √scale
    epsilon   "softmax": number added to each feature, as in Google's code. Raises Unsupported for a
              causal sequence
    seed      seed of the directions, drawn for each layer
    """

    features: Literal["softmax", "relu"] = "softmax"
    m: Positive | None = 256
    offset: Annotated[float, Range(above=0)] = 1e-3
    scaled: bool = True
    epsilon: Annotated[float, Range(least=0)] = 0.0
    seed: NonNegative = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m is None and self.features == "softmax":
            raise ValueError("m=null needs features=relu")
        if self.epsilon and self.features == "relu":
            raise ValueError("epsilon needs features=softmax; relu has offset")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if not self.epsilon:
            return super().attend(query, key, value, call)
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        q, k, v = (widened(x) for x in (query, *per_head(query, key, value)))
        (of_query, along_query), (of_key, along_key) = (self._along(x, call) for x in (q, k))
        most = along_key.amax(-1, keepdim=True)
        if call.sequence.valid is not None:
            padding = ~call.sequence.valid[:, None, :, None]
            most = most.masked_fill(padding, torch.finfo(most.dtype).min)
        least = most.new_tensor(self.epsilon).log()
        log_query = along_query - _half(of_query) - along_query.amax(-1, keepdim=True)
        log_key = along_key - _half(of_key) - most.amax(2, keepdim=True)
        log_key, bias = log_key.logaddexp(least), call.sequence.key_bias(k.dtype)
        sums = FeatureSums.of(log_key if bias is None else log_key + bias.mT, v)
        return sums.read(log_query.logaddexp(least)).output.to(query.dtype)

    def log_features(self, x: Tensor, call: AttentionCall) -> Tensor:
        x, along = self._along(x, call)
        if self.features == "relu":
            return (along.relu() + self.offset).log()
        return along - _half(x)

    def _along(self, x: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Scaled queries or keys [B, H, k, d], and their w·x [B, H, k, m]."""
        if self.scaled:
            x = x * math.sqrt(call.scale)
        if self.m is None:
            return x, x
        return x, x @ directions(self.m, x.shape[-1], self.seed + DRAWN * call.layer).to(x).T

    def feature_count(self, head_size: int) -> int:
        return self.m or head_size

    def scaled_down(self) -> Method:
        return replace(self, m=self.m and 16, offset=0.1)

    def unsupported(self, workload: Workload) -> str | None:
        if self.epsilon and workload.causal:
            return CAUSAL
        return super().unsupported(workload)

    def state_bytes(self, workload: Workload) -> int:
        """With `epsilon`, the features of all queries and keys of one layer, and their sums."""
        if not self.epsilon:
            return super().state_bytes(workload)
        m, d = self.feature_count(workload.head_size), workload.head_size
        numbers = 2 * workload.length * m + m * (d + 1)
        return workload.bytes_per_element * workload.batch * workload.heads * numbers


def _half(x: Tensor) -> Tensor:
    """|x|²/2 [B, H, k, 1] of x [B, H, k, d]."""
    half: Tensor = x.square().sum(-1, keepdim=True) / 2
    return half


@lru_cache(maxsize=64)
def directions(m: int, d: int, seed: int) -> Tensor:
    """[m, d] float64: rows that are orthogonal within each block of d, with the lengths of normal
    vectors (§2.4)."""
    generator = torch.Generator().manual_seed(seed)
    blocks = math.ceil(m / d)
    normal = torch.randn(blocks, d, d, generator=generator, dtype=torch.float64)
    bases, triangles = torch.linalg.qr(normal)
    # LAPACK's signs aren't random: without this the estimate is biased for any m.
    bases = bases * triangles.diagonal(dim1=1, dim2=2).sign()[:, None]
    lengths = torch.randn(m, d, generator=generator, dtype=torch.float64).norm(dim=1)
    orthogonal: Tensor = bases.mT.reshape(blocks * d, d)[:m] * lengths[:, None]
    return orthogonal
