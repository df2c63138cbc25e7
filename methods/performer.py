"""Performer (Choromanski et al., arXiv 2009.14794): softmax attention by random features (FAVOR+).

With w of a standard normal distribution, exp(x·y) = E[φ_w(x) φ_w(y)] for the positive features
φ_w(x) = exp(w·x - |x|²/2) (§2.3, lemma 1), here with x = q √scale and y = k √scale. Their mean over
m directions, orthogonal within each d (§2.4), makes attention linear in n (§2.2); its numerator
and denominator are unbiased, with an error of order m^(-1/2).

Differs from official code:
- No 10⁻⁴ is added to the features (`parts.linear`): in a causal model keys to come would show
  through it, for there keys are scaled by the largest of all positions.
- Directions are fixed by the seed and the layer; there they are drawn anew in training.
- LRA's default is features="relu" with m=null; its softmax one, on ListOps only, has 2 features.
- In Nyströmformer's harness padding takes part in the denominator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from methods.base import AttentionCall, Method
from methods.parts.linear import LinearMethod
from methods.parts.parameters import NonNegative, Positive, Range

DRAWN = 1_000_003  # seeds of layers are this far apart


@dataclass(frozen=True)
class Performer(LinearMethod):
    """FAVOR+.

    features  "softmax", or "relu", the generalised kernel φ(x) = relu(w·x) + offset (§2.2), which
              weights must be trained with
    m         random features; None, for "relu" only: relu(x) + offset itself
    offset    of "relu"
    seed      of the directions, drawn for each layer
    """

    features: Literal["softmax", "relu"] = "softmax"
    m: Positive | None = 256
    offset: Annotated[float, Range(above=0)] = 1e-3
    seed: NonNegative = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m is None and self.features == "softmax":
            raise ValueError("m=null needs features=relu")

    def log_features(self, x: Tensor, call: AttentionCall) -> Tensor:
        x = x * math.sqrt(call.scale)
        projected: Tensor = x
        if self.m is not None:
            projected = x @ directions(self.m, x.shape[-1], self.seed + DRAWN * call.layer).to(x).T
        if self.features == "relu":
            return (projected.relu() + self.offset).log()
        half: Tensor = x.square().sum(-1, keepdim=True) / 2
        return projected - half

    def feature_count(self, head_size: int) -> int:
        return self.m or head_size

    def scaled_down(self) -> Method:
        return replace(self, m=self.m and 16, offset=0.1)


@lru_cache(maxsize=64)
def directions(m: int, d: int, seed: int) -> Tensor:
    """[m, d] float64: rows that are orthogonal within each block of d, with the lengths of normal
    vectors (§2.4)."""
    generator = torch.Generator().manual_seed(seed)
    blocks = math.ceil(m / d)
    normal = torch.randn(blocks, d, d, generator=generator, dtype=torch.float64)
    bases, triangles = torch.linalg.qr(normal)
    # LAPACK's signs aren't random: without this the estimate stays biased for any m.
    bases = bases * triangles.diagonal(dim1=1, dim2=2).sign()[:, None]
    lengths = torch.randn(m, d, generator=generator, dtype=torch.float64).norm(dim=1)
    orthogonal: Tensor = bases.mT.reshape(blocks * d, d)[:m] * lengths[:, None]
    return orthogonal
