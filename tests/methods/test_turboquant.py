"""TurboQuant against loops over tokens, and by hand."""

from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist

import pytest
import torch

from methods.kernels.codes import packed, unpacked
from methods.turboquant import TurboQuant, centroids
from tests.methods.decoder import SCALE, SIZE, call_of, decoded, inputs, stored, workload
from tests.methods.hand import heads

BITS = [1, 2, 3, 4]
VALUES = {1: [0.7979], 2: [0.4528, 1.5104], 3: [0.2451, 0.7560, 1.3439, 2.1519]}
ERRORS = {1: "0.363", 2: "0.117", 3: "0.035", 4: "0.0095"}
"""As printed: the mean squared error to so many decimals."""


@dataclass(frozen=True)
class Turned(TurboQuant):
    """Each pair of channels turned by 45°."""

    def rotation(self, size):
        turn = torch.tensor([[1, -1], [1, 1]], dtype=torch.float64) / sqrt(2)
        return torch.block_diag(*[turn] * (size // 2))


def test_by_hand():
    """(3, 4) turned by 45° is (-.707, 4.950), and (-.2, 1.4) at length √2: the nearest of the four
    centroids are -.4528 and 1.5104, which turned back at length 5 are (2.64, 4.91). It is read
    alone: the second token's key and value are the first's."""
    x = heads(*[(3.0, 4.0) * 4] * 2)
    _, outputs = decoded(Turned(2), x, x, x, 1)
    assert outputs[0, 0, 1].tolist() == pytest.approx([2.644, 4.909] * 4, abs=2e-3)


@pytest.mark.parametrize("bits", BITS)
def test_centroids_are_those_of_the_normal_distribution(bits):
    numbers, normal = centroids(bits), NormalDist()
    assert numbers == pytest.approx([-x for x in reversed(numbers)], abs=1e-7)
    if bits in VALUES:
        assert numbers[len(numbers) // 2 :] == pytest.approx(VALUES[bits], abs=1e-4)
    steps = [-8 + i / 1000 for i in range(16001)]
    error = sum(min((x - c) ** 2 for c in numbers) * normal.pdf(x) for x in steps) / 1000
    printed = ERRORS[bits]
    assert f"{error:.{len(printed) - 2}f}" == printed


@pytest.mark.parametrize("bits", BITS)
def test_codes_come_back(bits):
    codes = torch.randint(0, 1 << bits, (3, 5, 24), generator=torch.Generator().manual_seed(0))
    some = packed(codes.to(torch.uint8), bits)
    assert some.dtype == torch.uint8 and some.shape == (3, 5, 3 * bits)
    assert torch.equal(unpacked(some, bits, torch.int32), codes.int())


def rounded(x, rotation, bits):
    """A vector [d] that went through few bits, its norm over √d through 16."""
    size = x.norm() / sqrt(len(x))
    numbers = torch.tensor(centroids(bits), dtype=x.dtype)
    nearest = ((rotation @ x / size)[:, None] - numbers).abs().argmin(1)
    return size.half().double() * rotation.T @ numbers[nearest]


@pytest.mark.parametrize("bits", BITS)
def test_equals_its_twin(bits):
    n, prompt = 40, 30
    query, key, value = inputs(n)
    method = TurboQuant(bits, seed=3)
    _, outputs = decoded(method, query, key, value, prompt)
    keys, values = (
        torch.stack([torch.stack([rounded(x, method.rotation(SIZE), bits) for x in head])
                     for head in whole[0]])
        for whole in (key, value)
    )  # fmt: skip
    for at in range(prompt, n):
        for head in range(4):
            weight = (keys[head // 2, : at + 1] @ query[0, head, at] * SCALE).softmax(0)
            expected = weight @ values[head // 2, : at + 1]
            torch.testing.assert_close(outputs[0, head, at], expected)


def test_the_error_falls_with_the_bits_to_none():
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, count, 300, 64, generator=draw, dtype=torch.float64) for count in (4, 2, 2)
    )
    work = replace(workload(), head_size=64)
    exact, *outputs = (
        decoded(TurboQuant(bits), query, key, value, 200, work=work, scale=0.125)[1][:, :, 200:]
        for bits in (None, *BITS)
    )
    errors = [float((x - exact).norm() / exact.norm()) for x in outputs]
    assert errors == sorted(errors, reverse=True)
    for bits, error in zip(BITS, errors, strict=True):
        assert error < 1.5 * sqrt(float(ERRORS[bits]))


def test_a_rotation_keeps_lengths_and_follows_its_seed():
    one, other = TurboQuant().rotation(16), TurboQuant(seed=1).rotation(16)
    torch.testing.assert_close(one @ one.mT, torch.eye(16, dtype=torch.float64))
    assert torch.equal(one, TurboQuant().rotation(16)) and not torch.allclose(one, other)


@pytest.mark.parametrize("bits", BITS)
def test_holds_its_bits_and_16_a_vector(bits):
    """b + 16/d bits a number, the rotation, and room for 64 tokens after the first new one."""
    draw = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, 2, 640, 64, generator=draw, dtype=torch.bfloat16) for _ in range(3)]
    work = replace(workload(), head_size=64)
    cache, _ = decoded(TurboQuant(bits), *qkv, 640, work=work)
    token = 2 * 2 * 64 * (bits + 16 / 64) / 8
    assert stored(cache) == 640 * token + 64 * 64 * 4
    cache.decode(*(x[:, :, :1] for x in qkv), call_of(641))
    assert stored(cache) == 704 * token + 64 * 64 * 4
    assert cache.read_bytes == 641 * token + 64 * 64 * 4


def test_a_vector_of_zeros_stays_zero():
    query, key, value = inputs(12)
    key[:, :, 5:], value[:, :, 5:] = 0, 0
    _, outputs = decoded(TurboQuant(), query, key, value, 10)
    assert outputs.isfinite().all()
    _, outputs = decoded(TurboQuant(), query, key, 0 * value, 10)
    assert not outputs.any()
