"""Caches in codes of a few bits: the native kernel equals torch over restored numbers."""

from dataclasses import replace

import pytest
import torch

from methods import kernels
from methods.ggml_cache import GGMLCache
from methods.kivi import KIVI
from methods.turboquant import TurboQuant
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
FEATURES = [
    {},
    {"window": 70, "softcap": 3.0, "sinks": torch.zeros(6)},
    {"valid": torch.arange(140) >= torch.tensor([[0], [9]])},
]
N, PROMPT = 140, 131


def tensors(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, N, 64, generator=draw).to(dtype) for heads in (6, 2, 2)]


def outputs(method, kernel, chunk, dtype=torch.float32, **features):
    """Of new tokens, and the method."""
    method = replace(method, kernel=kernel)
    work = replace(workload(PROMPT, 2), head_size=64, heads=6)
    _, found = decoded(method, *tensors(dtype), PROMPT, chunk, work, **features)
    return found[:, :, PROMPT:], method


@native
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "-".join(features))
@pytest.mark.parametrize("method", CACHES, ids=str)
def test_the_kernel_equals_torch(method, features, chunk):
    ours, ran = outputs(method, "native", chunk, **features)
    expected, asked = outputs(method, "torch", chunk, **features)
    assert error(ours, expected) < 2e-6
    assert (ran.kernel_used, asked.kernel_used) == (kernels.name(), "torch")


@native
@pytest.mark.parametrize("method", CACHES, ids=str)
def test_the_kernel_takes_bfloat16(method):
    ours, ran = outputs(method, "native", 1, torch.bfloat16)
    theirs, _ = outputs(method, "torch", 1, torch.bfloat16)
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
