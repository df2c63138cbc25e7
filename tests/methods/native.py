"""Shared parts of the tests of native kernels: inputs, biases, and both paths of a search."""

import pytest
import torch

from methods import kernels
from methods.iceformer.iceformer import IceFormer
from methods.iceformer.inputs import inputs_by_row

native = pytest.mark.skipif(kernels.available() is not None, reason=f"{kernels.available()}")
SIZES = [
    (1, 1, 8), (2, 63, 16), (1, 64, 64), (2, 131, 24), (1, 257, 48), (1, 300, 80), (1, 97, 128),
]  # fmt: skip
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}


def inputs(batch, n, d, heads=4, key_heads=None, seed=0):
    make = torch.Generator().manual_seed(seed)
    counts = (heads, key_heads or heads, key_heads or heads)
    return [torch.randn(batch, h, n, d, generator=make) for h in counts]


def error(got, expected):
    assert got.isfinite().all()
    return float((got - expected).norm() / expected.norm())


def products():
    missing = kernels.available("bfloat16")
    skip = pytest.mark.skipif(missing is not None, reason=str(missing))
    return ["float32", pytest.param("bfloat16", marks=skip)]


class Buckets:
    """A bias that differs by head, up to some distance on either side."""

    def __init__(self, heads, reach, size=2.0):
        make = torch.Generator().manual_seed(7)
        self.table, self.reach = size * torch.randn(heads, 2 * reach + 1, generator=make), reach

    def of(self, distance):
        return self.table[:, distance.clamp(-self.reach, self.reach) + self.reach]

    def __call__(self, query_positions, key_positions):
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return self.of(distance).transpose(0, 1)

    def diagonals(self, n):
        return self.of(torch.arange(1 - n, n))


REACHES = [0, 3, 128, 10**6]  # no difference at all, near ones, T5's, everywhere


def select(search, kernel, query, key, value, call, step=1, **fields):
    """Output [B, H, q, e] and selected keys [B, H, q, k] of one path, for every `step`-th query."""
    method = IceFormer(search=search, kernel=kernel, **fields)
    ((inputs, _),) = inputs_by_row(query, key, value, call, method.k_for)
    result = method.select(inputs.of(torch.arange(0, query.shape[2], step)), 0)
    ran = "torch"
    if kernel == "native":
        ran = kernels.name("float32" if search == "dci" else "int8")
    assert method.kernel_used == ran
    return result


def check_best_keys(search, query, key, value, call, step=1, **fields):
    """Each path's output is the softmax over the keys it selected, for every `step`-th query; and
    the native path's keys are as good as torch's, rank by rank: equal scores within rounding where
    both have the same candidates (dci), never lower where the native ones include torch's
    (quantized). Two keys with equal scores are interchangeable."""
    every_query = query
    scores = query.double() @ key.double().mT * call.scale
    if call.bias is not None:
        scores = scores + call.bias.diagonals(query.shape[2]).unfold(-1, query.shape[2], 1).flip(1)
    if call.sequence.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    scores, query = scores[:, :, ::step], query[:, :, ::step]
    near = 1e-6 * call.scale * query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).amax()
    ranked = []
    for kernel in ("native", "torch"):
        output, ids = select(search, kernel, every_query, key, value, call, step, **fields)
        sorted_ids = ids.sort(-1).values
        twice = sorted_ids[..., 1:] == sorted_ids[..., :-1]
        assert not (twice & (sorted_ids[..., 1:] >= 0)).any()
        chosen = scores.gather(-1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
        weights = torch.zeros_like(scores).scatter_add(-1, ids.clamp(min=0), chosen.softmax(-1))
        expected = weights @ value.double()
        apart = (output - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert apart.max() < 2e-5  # of any query
        ranked.append(chosen.sort(-1, descending=True).values)
    native, twin = ranked
    assert ((native >= twin - near) | (twin == -torch.inf)).all()
    if search == "dci":
        assert ((native <= twin + near) | (native == -torch.inf)).all()
    best = scores.topk(min(native.shape[-1], scores.shape[-1])).values
    assert (native[..., : best.shape[-1]] <= best + near).all()
