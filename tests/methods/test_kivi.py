"""KIVI against loops over groups, and by hand."""

import pytest
import torch

from methods.kernels.codes import quantised, restored
from methods.kivi import KIVI
from tests.methods.decoder import SCALE, call_of, decoded, inputs, stored


def test_by_hand():
    """-1 .2 .5 2 in 2 bits: scale 1, codes 0 1 2 3 in a byte, and back -1 0 1 2."""
    x = torch.tensor([[-1, 0.2, 0.5, 2]], dtype=torch.float64)
    codes, scale, minimum = quantised(x, 2, -1)
    assert codes.tolist() == [[0b11_10_01_00]] and codes.dtype == torch.uint8
    assert (scale.item(), minimum.item()) == (1, -1)
    assert restored(codes, scale, minimum, 2, x.dtype).tolist() == [[-1, 0, 1, 2]]


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("dim", [-1, -2])
def test_codes_come_back(bits, dim):
    x = torch.randint(0, 1 << bits, (3, 8, 8), generator=torch.Generator().manual_seed(0)).double()
    x.select(dim, 0)[:], x.select(dim, 1)[:] = 0, (1 << bits) - 1
    parts = quantised(x, bits, dim)
    assert parts[0].numel() == x.numel() * bits // 8
    assert torch.equal(restored(*parts, bits, x.dtype), x)
    same = torch.full((3, 8), 2.5)
    assert torch.equal(restored(*quantised(same, bits, -1), bits, same.dtype), same)


def rounded(x, bits):
    """A group [m] rounded to few bits, with its scale and minimum in 16 bits."""
    minimum = x.min().half().double()
    scale = ((x.max() - x.min()) / (2**bits - 1)).half().double()
    return minimum + scale * ((x - minimum) / scale).round().clamp(0, 2**bits - 1)


@pytest.mark.parametrize("bits", [2, 4])
def test_equals_its_twin(bits):
    n, prompt, group, residual = 70, 45, 4, 16
    query, key, value = inputs(n)
    _, outputs = decoded(KIVI(bits, group, residual), query, key, value, prompt)
    for at in range(prompt, n):
        keys, values = key[0, :, : at + 1].clone(), value[0, :, : at + 1].clone()
        old = at // residual * residual  # keys of the whole residuals before this token
        for head in range(2):
            for channel in range(8):
                for start in range(0, old, group):
                    part = keys[head, start : start + group, channel]
                    keys[head, start : start + group, channel] = rounded(part, bits)
            for token in range(at - residual):
                for start in range(0, 8, group):
                    part = values[head, token, start : start + group]
                    values[head, token, start : start + group] = rounded(part, bits)
        for head in range(4):
            weight = (keys[head // 2] @ query[0, head, at] * SCALE).softmax(0)
            torch.testing.assert_close(outputs[0, head, at], weight @ values[head // 2])


def test_two_bits_in_groups_of_32_are_three_bits_a_number():
    draw = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, 2, 640, 64, generator=draw, dtype=torch.bfloat16) for _ in range(3)]
    cache, _ = decoded(KIVI(residual=32), *qkv, 640)
    keys, values = 2 * 640 * 64 * 3 // 8, 2 * (640 - 32) * 64 * 3 // 8
    room = 2 * 64 * 3 // 8 * (640 - 608)  # values grow by 64 tokens
    assert stored(cache) == keys + values + room + 2 * 32 * 64 * 2
    cache.decode(*(x[:, :, :1] for x in qkv), call_of(641))
    assert cache.read_bytes == keys + values + 2 * 33 * 64 * 2 + 2 * 64 * 2
