"""Vanilla: fused and unfused attention agree, and the fused one never sees an n×n bias."""

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo, Workload
from methods.parts.attention import ROWS, exact_attention
from methods.vanilla import Vanilla, VanillaEager
from tests.methods.hand import Slope

HEADS, SIZE = 3, 8


def slope():
    return Slope(torch.linspace(0.01, 0.1, HEADS))


def inputs(n, batch=2, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, HEADS, n, SIZE, generator=make) for _ in range(3)]


def sequences(n):
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, n // 2 :] = False
    left = valid.flip(1)
    spread = torch.arange(n).mul(3).expand(2, n)
    counts = torch.arange(1.0, 2 * n + 1).view(2, n).log()
    return {
        "plain": SequenceInfo(),
        "padded right": SequenceInfo(valid=valid),
        "padded left": SequenceInfo(valid=left),
        "counted": SequenceInfo(log_multiplicity=counts),
        "counted and padded": SequenceInfo(log_multiplicity=counts, valid=valid),
        "positions": SequenceInfo(positions=spread),
        "shifted positions": SequenceInfo(positions=torch.arange(7, n + 7).expand(2, n)),
        "positions and padded": SequenceInfo(positions=spread, valid=valid),
        "causal": SequenceInfo(causal=True),
        "causal and padded": SequenceInfo(causal=True, valid=valid),
    }


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("n", [1, 2, 67, ROWS + 5])
@pytest.mark.parametrize("name", sequences(1))
def test_fused_equals_eager(name, n, biased):
    call = AttentionCall(sequences(n)[name], scale=0.3, layer=0, bias=slope() if biased else None)
    query, key, value = inputs(n)
    fused = Vanilla().attend(query, key, value, call)
    eager = VanillaEager().attend(query, key, value, call)
    assert fused.isfinite().all()
    torch.testing.assert_close(fused, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("added", [-1e3, -1e4, -1e6])
def test_official_masks_and_scales_differ_in_rounding_alone(added):
    query, key, value = inputs(30)
    sequence = sequences(30)["padded right"]
    root = SIZE**0.25
    scores = (query / root) @ (key / root).mT + added * ~sequence.valid[:, None, None]
    ours = Vanilla().attend(query, key, value, AttentionCall(sequence, SIZE**-0.5, 0))
    torch.testing.assert_close(ours, scores.softmax(-1) @ value, rtol=1e-5, atol=1e-5)


def test_multiplicity_counts_a_key_as_often_as_it_says():
    query, key, value = inputs(3)
    times = torch.tensor([1, 4, 2])
    sequence = SequenceInfo(log_multiplicity=times.log().expand(2, 3))
    counted = exact_attention(query, key, value, AttentionCall(sequence, 1.0, 0))
    repeated = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(times, 2), value.repeat_interleave(times, 2), scale=1.0
    )
    torch.testing.assert_close(counted, repeated)


@pytest.mark.parametrize("name", sequences(1))
def test_no_bias_is_ever_n_by_n(name):
    n = 3 * ROWS
    bias = slope()
    exact_attention(*inputs(n), AttentionCall(sequences(n)[name], 1.0, 0, bias))
    assert bias.largest <= ROWS * n


def test_row_without_valid_keys_is_finite():
    sequence = SequenceInfo(valid=torch.zeros(2, 5, dtype=torch.bool))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        query, key, value = (x.to(dtype) for x in inputs(5))
        for method in (Vanilla(), VanillaEager()):
            for bias in (None, slope()):
                output = method.attend(query, key, value, AttentionCall(sequence, 1.0, 0, bias))
                assert output.isfinite().all() and output.dtype == dtype


def test_eager_memory_is_quadratic():
    shape = Workload(length=1000, batch=2, heads=4, head_size=8, layers=2, hidden_size=32)
    assert VanillaEager().state_bytes(shape) == 2 * 4 * 2 * 4 * 1000**2
    assert Vanilla().state_bytes(shape) is None
