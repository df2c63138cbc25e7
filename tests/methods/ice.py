"""Shared parts of the tests of IceFormer: inputs, and its searches on both paths."""

from typing import get_args

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.iceformer.iceformer import Search
from tests.methods.hand import Slope

HEADS, SIZE = 2, 32
KERNELS = ["torch", "native"]  # without a native kernel both are torch
RECALL = {"auto": 0.98, "exact": 1.0, "quantized": 0.98, "blocks": 0.95, "dci": 0.9}
WAYS = [(search, kernel) for search in get_args(Search) for kernel in KERNELS]
ways = pytest.mark.parametrize("search, kernel", WAYS)
causals = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def inputs(n, batch=1, heads=HEADS, key_heads=HEADS, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, h, n, SIZE, generator=make) for h in (heads, key_heads, key_heads)]


def clustered(n, batch=1, seed=0):
    """Keys around 32 centres of different norms, and queries near one key each, as in trained
    heads."""
    make = torch.Generator().manual_seed(seed)
    centres = torch.randn(batch, HEADS, 32, SIZE, generator=make)
    centres *= torch.rand(batch, HEADS, 32, 1, generator=make) + 0.5
    which = torch.randint(32, (batch, HEADS, n, 1), generator=make).expand(-1, -1, -1, SIZE)
    key = centres.gather(2, which) + 0.5 * torch.randn(batch, HEADS, n, SIZE, generator=make)
    which = torch.randint(n, (batch, HEADS, n, 1), generator=make).expand(-1, -1, -1, SIZE)
    query = 2 * key.gather(2, which) + torch.randn(batch, HEADS, n, SIZE, generator=make)
    return query, key, torch.randn(batch, HEADS, n, SIZE, generator=make)


def call(n=0, causal=False, **sequence):
    return AttentionCall(SequenceInfo(causal=causal, **sequence), SIZE**-0.5, 0)


def slope():
    return Slope(torch.tensor([0.02, -0.01]))
