"""A-shape against dense attention under its mask, and by hand."""

import pytest
import torch

from methods.a_shape import AShape
from tests.methods.hand import A, inputs, read
from tests.methods.native import native
from tests.methods.prefill import check_kernels, check_twin


@pytest.mark.parametrize("method", [AShape(2, 6), AShape(70, 3), AShape(0, 1)], ids=str)
def test_equals_its_twin(method):
    def seen(query, key, scale):
        i, j = torch.arange(len(key))[:, None], torch.arange(len(key))
        return (j <= i) & ((j < method.global_tokens) | (i - j < method.local_window))

    check_twin(method, seen)


@native
def test_native_kernel_agrees():
    check_kernels(AShape(70, 100))


def test_by_hand():
    """With one first token and two near ones, only the last of four queries misses a key."""
    exact = read(AShape(0, 4), *A, causal=True)
    shape = read(AShape(1, 2), *A, causal=True)
    assert shape[:3] == pytest.approx(exact[:3]) and shape[3] != pytest.approx(exact[3])


def test_the_share_of_tiles_left_out_by_hand():
    """256 tokens have 10 tiles at or below the diagonal. Those on it, those next to it and the
    first ones are read: 9."""
    method = AShape(1, 64)
    assert method.skipped == 0
    read(method, *inputs(256), causal=True)
    assert method.skipped == pytest.approx(0.1)
