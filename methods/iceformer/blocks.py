"""Blocks of similar keys; a query scans only the blocks that may hold one of its best keys.
`methods/iceformer/knn.py` defines an index. Like the scans, this search is not the paper's.

A tree halves the keys along their principal axes, down to blocks of 64. The mean and the variance
of its keys describe a block, in the few coordinates in which scores differ most: its scores with a
query are assumed to stay within `DEVIATIONS` standard deviations above their mean. A query scans
the blocks with the highest such bounds, and then those whose bound is above the k-th best score
found.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods import kernels
from methods.iceformer.inputs import TopKInputs
from methods.iceformer.scans import TINY, Quantized, rescored

DEVIATIONS = 3.5
SHOWN = 4096  # keys, and queries, from which covariances are estimated
RIDGE = 1e-4  # added to the queries' covariance, so that it has an inverse
LEFT_OUT = 0.15
"""Share of the variance of scores that the coordinates may leave out, in the mean of the heads:
with more, blocks reach far, so that a scan of all is faster, or further than they are taken to.
Keys of trained models leave out .00 to .11, independent numbers .47 (32 of them) or .72 (64)."""


class Blocks(Quantized):
    """`Quantized`, but the native kernel skips blocks that hold none of the best keys. This needs
    queries that see all keys, scores without a bias, and few coordinates that approximate them."""

    def native(self, inputs: TopKInputs) -> tuple[Tensor, Tensor] | str:
        query, key = inputs.query, inputs.key
        n = key.shape[2]
        if inputs.bias is not None or n < kernels.BLOCK or int(inputs.seen.min()) < n:
            return super().native(inputs)
        points = main_points(query.float(), key.float())
        if points is None:
            return super().native(inputs)
        return kernels.topk_blocks(
            query, key, inputs.value, inputs.scale, inputs.k, rescored(inputs.k), points, DEVIATIONS
        )


def main_points(query: Tensor, key: Tensor) -> kernels.Points | None:
    """Queries [B, H, q, d] and keys [B, H, n, d] in the coordinates in which their products vary
    most; None where these leave out too much or numbers aren't finite. One head at a time, to save
    memory.
    """
    parts, left_out = [], 0.0
    for b, h in itertools.product(range(query.shape[0]), range(query.shape[1])):
        head = _of_head(query[b, h], key[b, h])
        if head is None:
            return None
        parts.append(head[0])
        left_out += head[1]
    if left_out > LEFT_OUT * len(parts):
        return None
    stacked = (torch.stack(part).unflatten(0, query.shape[:2]) for part in zip(*parts, strict=True))
    return kernels.Points(*stacked)


def _of_head(query: Tensor, key: Tensor) -> tuple[tuple[Tensor, ...], float] | None:
    """The `kernels.Points` of queries [q, d] and keys [n, d], and the share that they leave out.

    With L Lᵀ the second moment of queries, the mean square of a key's scores is |Lᵀk|²: so the axes
    are the principal axes of the Lᵀk, and queries have the coordinates of L⁻¹q.
    """
    mean = key.mean(0)
    moment, covariance = _moment(_some(query)), _moment(_some(key) - mean)
    size = moment.diagonal().mean().clamp(min=TINY)
    lower, failed = torch.linalg.cholesky_ex(moment + RIDGE * size * torch.eye(len(mean)))
    if failed or not covariance.isfinite().all():
        return None
    variances, axes = torch.linalg.eigh(lower.mT @ covariance @ lower)
    share = float(variances[: -kernels.AXES].sum() / variances.sum().clamp(min=TINY))
    axes, variances = axes[:, -kernels.AXES :], variances[-kernels.AXES :]
    queries = query @ torch.linalg.solve_triangular(lower.mT, axes, upper=True)
    shown = queries.square() @ variances
    left_out = (((query @ covariance) * query).sum(-1) - shown).clamp(min=0)
    missing = (0, kernels.AXES - axes.shape[1])
    keys = key @ (lower @ axes) - mean @ lower @ axes
    return (pad(keys, missing), pad(queries, missing), query @ mean, left_out), share


def _some(x: Tensor) -> Tensor:
    return x[:: max(1, len(x) // SHOWN)]


def _moment(x: Tensor) -> Tensor:
    """The second moment [d, d] of rows [n, d]."""
    return x.mT @ x / len(x)
