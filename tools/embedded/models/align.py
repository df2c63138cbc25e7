"""Attention heads initialised from examples to compare two words.

An inner product shows whether an option states the fact that a question's word has retrieved, but
gradients find it late. Canonical correlation (Hotelling, 1936) of the states at both ends of
correct attention gives it in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Below(Method):
    """Vanilla that stops before one layer: its states are that layer's input."""

    layer: int

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return super().encode(layers[: self.layer], hidden, sequence)


def canonical(
    left: Tensor, right: Tensor, count: int, ridge: float = 0.01
) -> tuple[Tensor, Tensor]:
    """Projections [count, D] of centred left and right [N, D] of unit variance each, the most
    correlated ones, scaled by the roots of their correlations."""
    roots = []
    for side in (left, right):
        covariance = side.T @ side / len(side)
        covariance += ridge * covariance.diagonal().mean() * torch.eye(side.shape[1])
        values, vectors = torch.linalg.eigh(covariance)
        roots.append(vectors @ (values.rsqrt()[:, None] * vectors.T))
    u, strength, v = torch.linalg.svd(roots[0] @ (left.T @ right / len(left)) @ roots[1])
    weight = strength[:count].clamp(max=1).sqrt()[:, None]
    return weight * (u.T[:count] @ roots[0]), weight * (v[:count] @ roots[1])


@torch.no_grad()
def align(layer: Any, head: int, left: Tensor, right: Tensor, gain: float) -> None:
    """Set the queries and keys of one head of a Hugging Face layer to compare states such as left
    [N, D] with states such as right [N, D]: `gain` times their product in whitened coordinates."""
    attention = layer.attention.self
    size = attention.attention_head_size
    rows = slice(head * size, (head + 1) * size)
    means = left.mean(0), right.mean(0)
    matrices = canonical(left - means[0], right - means[1], size)
    linears = attention.query, attention.key
    for linear, matrix, mean in zip(linears, matrices, means, strict=True):
        linear.weight[rows] = gain**0.5 * matrix
        linear.bias[rows] = -(gain**0.5) * matrix @ mean
