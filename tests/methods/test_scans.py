"""IceFormer's scan in 8 bits finds the best keys where some channels hold much larger numbers."""

import pytest
import torch

from methods.iceformer import scans
from methods.iceformer.iceformer import IceFormer
from tests.methods.ice import KERNELS, SIZE, call, causals, inputs

pytestmark = pytest.mark.usefixtures("poison")
N = 1500


def signs(size):
    return size * (torch.randint(2, (N,), generator=torch.Generator().manual_seed(9)) * 2 - 1)


def ignored(query, key):
    """A channel of ±300 that queries don't read."""
    query[..., 5], key[..., 5] = 0, signs(300)


def weighty(query, key):
    """One that they read: it decides between halves of the keys, the others within a half."""
    key[..., 5] = signs(300)


def constant(query, key):
    """The same number in all keys changes no order."""
    key[..., 5] += 300


def several(query, key):
    """Channels of many sizes, and queries of the inverse sizes."""
    sizes = torch.logspace(-1.5, 1.5, SIZE)
    query /= sizes
    key *= sizes


def late(query, key):
    """A channel that begins within a span of blocks."""
    query[..., 5] = 0
    key[..., 1000:, 5] = signs(300)[1000:]


@pytest.mark.parametrize("kernel", KERNELS)
@causals
@pytest.mark.parametrize("change", [ignored, weighty, constant, several, late])
def test_channels_of_large_numbers_hide_no_keys(change, causal, kernel):
    query, key, _ = inputs(N)
    change(query, key)
    found = IceFormer(kernel=kernel).diagnose(query, key, call(causal=causal))
    assert found["recall"] >= 0.98


def test_spans_of_blocks_and_scales_of_their_channels():
    """Square roots of sizes, whose mean is 1; of a span those of blocks up to its first."""
    _, key, _ = inputs(6 * scans.BLOCK, heads=1, key_heads=1)
    key[..., 5] *= 100
    index = scans.Quantized()
    index.add(key[:, :, :100])
    index.add(key[:, :, 100:])
    found = list(index.channels())
    assert [list(span) for span, _ in found] == [[0], [1], [2, 3], [4, 5]]
    for _, scales in found:
        torch.testing.assert_close(scales.mean(-1), torch.ones(1, 1))
        others = torch.cat((scales[..., :5], scales[..., 6:]), -1)
        torch.testing.assert_close(
            scales[..., 5] / others.mean(-1), torch.tensor([[10.0]]), rtol=0.5, atol=0
        )
