"""Caches in codes of a few bits, and those that are read in part: the native kernels equal torch,
on restored numbers and on copies of the entries that are read."""

from dataclasses import replace

import pytest
import torch

from methods import kernels
from methods.ggml_cache import GGMLCache
from methods.kivi import KIVI
from methods.quest import Quest
from methods.sparq import SparQ
from methods.turboquant import TurboQuant
from methods.vattention import VAttention
from tests.methods.decoder import decoded, workload
from tests.methods.native import error, native

CACHES = [
    GGMLCache(),
    GGMLCache("q4_0", "q4_0", hadamard=True),
    GGMLCache("full", "q4_0"),
    GGMLCache("q8_0", "full"),
    KIVI(2, residual=32),
    KIVI(4, group=64, residual=64),
    TurboQuant(2),
    TurboQuant(3),
    TurboQuant(4),
]
READ_IN_PART = [
    Quest(50, dense_layers=0, several="sparse"),
    Quest(50, dense_layers=0, share="head", newest="ranked", several="sparse"),
    SparQ(50, several="sparse"),
    VAttention(60, several="sparse"),
]
FEATURES = [
    {},
    {"window": 70, "softcap": 3.0, "sinks": torch.zeros(6)},
    {"valid": torch.arange(140) >= torch.tensor([[0], [9]])},
]
BOTH = [
    *((method, features) for method in CACHES for features in FEATURES),
    *((method, features) for method in READ_IN_PART for features in FEATURES[::2]),
]
N, PROMPT = 140, 131


def outputs(method, kernel, chunk, dtype=torch.float32, rounded=None, **features):
    """The outputs of new tokens, and the method. Queries, keys and values are `rounded` to a dtype
    first."""
    draw = torch.Generator().manual_seed(0)
    qkv = [torch.randn(2, heads, N, 64, generator=draw) for heads in (6, 2, 2)]
    qkv = [x.to(rounded or dtype).to(dtype) for x in qkv]
    method = replace(method, kernel=kernel)
    work = replace(workload(PROMPT, 2), head_size=64, heads=6)
    _, found = decoded(method, *qkv, PROMPT, chunk, work, **features)
    return found[:, :, PROMPT:], method


@native
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize(
    ("method", "features"), BOTH, ids=lambda x: "-".join(x) if isinstance(x, dict) else str(x)
)
def test_the_kernel_equals_torch(method, features, chunk):
    ours, ran = outputs(method, "native", chunk, **features)
    expected, asked = outputs(method, "torch", chunk, **features)
    assert error(ours, expected) < 2e-6
    assert (ran.kernel_used, asked.kernel_used) == (kernels.name(), "torch")


@native
@pytest.mark.parametrize("method", CACHES + READ_IN_PART, ids=str)
def test_the_kernel_takes_bfloat16(method):
    """Where torch reads a part, bfloat16 scores choose it, while the kernel's scores are exact."""
    ours, ran = outputs(method, "native", 1, torch.bfloat16)
    dtype = torch.float32 if method in READ_IN_PART else torch.bfloat16
    theirs, _ = outputs(method, "torch", 1, dtype, rounded=torch.bfloat16)
    assert ours.dtype == torch.bfloat16 and ran.kernel_used == kernels.name()
    assert error(ours.double(), theirs.double()) < 2e-2


@native
@pytest.mark.parametrize(
    ("codes", "scales", "fields", "reason"),
    [
        ((1, 1, 4, 16), (1, 1, 4, 1), {"bits": 1}, "codes of 1 bits"),
        ((1, 1, 4, 20), (1, 1, 4, 1), {}, "heads of 20 channels, no multiple of 16"),
        ((1, 1, 4, 32), (1, 1, 4, 8), {"bits": 4}, "groups of 8 channels in codes of 4 bits"),
        ((1, 1, 0, 32), (1, 1, 0, 1), {}, "nothing to read"),
    ],
)
def test_what_the_kernel_cannot_read_is_named(codes, scales, fields, reason):
    coded = kernels.Codes(
        torch.zeros(codes, dtype=torch.int8), torch.zeros(scales, dtype=torch.half), **fields
    )
    width = codes[3] * 8 // coded.bits
    assert kernels.code_scores(torch.zeros(1, 1, 1, width), coded) == reason
    if codes[2]:
        assert kernels.code_sums(torch.zeros(1, 1, 1, codes[2]), coded) == reason


@native
def test_rows_that_the_kernel_cannot_read_are_named():
    query, key, place = (
        torch.zeros(1, 1, 1, 20),
        torch.zeros(1, 1, 5, 20),
        torch.zeros(1, 1, 3).long(),
    )
    reason = "heads of 20 channels, no multiple of 16"
    assert kernels.row_scores(query, key, place) == reason
    narrow = "rows of 8 numbers, fewer than 16"
    assert kernels.row_sums(torch.zeros(1, 1, 1, 3), key[..., :8], place) == narrow
