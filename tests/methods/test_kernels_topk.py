"""The native kernels that find the best keys, and their torch twins: keys as good on both paths,
with a position bias and without."""

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.iceformer.iceformer import IceFormer
from tests.methods.native import (
    REACHES,
    SIZES,
    Buckets,
    check_best_keys,
    error,
    inputs,
    native,
    select,
)

pytestmark = pytest.mark.usefixtures("poison")
STEP = {4300: 9, 4500: 9}  # of long inputs, beyond the 64 blocks that give the first limits


@native
@pytest.mark.parametrize("search", ["dci", "quantized"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch, n, d, reach", [
    *((*size, None) for size in (*SIZES, (1, 1031, 64), (1, 4500, 32))),
    (1, 1, 16, 1), (1, 64, 32, 3), (1, 4300, 16, 128), *((1, 700, 64, reach) for reach in REACHES),
])  # fmt: skip
def test_best_keys_equal_torch(batch, n, d, reach, causal, search):
    """With a position bias up to `reach`, or none."""
    query, key, value = inputs(batch, n, d, heads=2)
    scale, bias = d**-0.5, None
    if reach is not None:
        scale, bias = 0.2, Buckets(2, min(reach, n), 3.0)
    call = AttentionCall(SequenceInfo(causal=causal), scale, 0, bias)
    check_best_keys(search, query, key, value, call, STEP.get(n, 1))


@native
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [50, 700, 4300])
def test_queries_that_only_look_at_distances_find_them_among_equal_keys(n, causal):
    query, key, value = inputs(1, n, 16, heads=2)
    bias = Buckets(2, 5)
    bias.table = torch.zeros(2, 11).index_fill(1, torch.tensor([4]), 20.0)
    bias.table[1, :8] = 3.0
    call = AttentionCall(SequenceInfo(causal=causal), 0.2, 0, bias)
    check_best_keys("quantized", query * 0, key, value, call, STEP.get(n, 1))
    _, ids = select("quantized", "native", query * 0, key, value, call)
    before = torch.arange(n - 1)[None, None, :, None]
    assert (ids[:, :1, 1:] == before).any(-1).all(), "the key at distance -1"
    assert (ids[:, :, 20:] >= 0).all()


@native
def test_best_keys_with_a_position_bias_of_padded_rows_and_spread_queries():
    query, key, value = inputs(2, 900, 32)
    valid = torch.ones(2, 900, dtype=torch.bool)
    valid[0, :200], valid[1, 700:] = False, False
    call = AttentionCall(SequenceInfo(valid=valid), 0.2, 0, Buckets(4, 128))
    outputs = []
    for kernel in ("native", "torch"):
        method = IceFormer(kernel=kernel)
        outputs.append(method.attend(query, key, value, call))
        assert method.diagnose(query, key, call)["recall"] > 0.999
        assert method.kernel_used.startswith(kernel) and ";" not in method.kernel_used
    for b in range(2):
        native, torchs = (x[b][:, valid[b]] for x in outputs)
        assert error(native, torchs) < 0.01


@native
@pytest.mark.parametrize("search", ["dci", "quantized"])
@pytest.mark.parametrize("k", [1, 5, 50, 120])
def test_best_keys_equal_torch_for_any_k(k, search):
    query, key, value = inputs(1, 700, 64, heads=2)
    check_best_keys(search, query, key, value, AttentionCall(SequenceInfo(), 0.125, 0), k=k)


@native
@pytest.mark.parametrize("far", [50.0, 5000.0])
@pytest.mark.parametrize("causal", [False, True])
def test_a_key_far_above_the_others_hides_none_of_them(causal, far):
    query, key, value = inputs(1, 2000, 64, heads=2)
    query, key = query + 1, key / 10
    key[:, :, 3] = far
    call = AttentionCall(SequenceInfo(causal=causal), 0.1, 0)
    check_best_keys("quantized", query, key, value, call)
    for kernel in ("native", "torch"):
        assert IceFormer(kernel=kernel).diagnose(query, key, call)["recall"] >= 0.99


@native
@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_are_all_alike_are_averaged(causal):
    query, key, value = inputs(1, 1500, 16, heads=2)
    same = key[:, :, :1].expand_as(key)
    output = IceFormer(k=20).attend(
        query, same, value, AttentionCall(SequenceInfo(causal=causal), 0.25, 0)
    )
    if causal:
        torch.testing.assert_close(output[:, :, 9], value[:, :, :10].mean(2))
    assert output.isfinite().all()
    assert output[:, :, 100:].norm(dim=-1).max() < value.norm(dim=-1).max()


@native
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("search", ["dci", "quantized"])
def test_queries_of_zeros_read_as_many_keys_as_others(search, causal):
    query, key, value = inputs(1, 900, 32, heads=2)
    query[:, 0] = 0
    query[:, 1, ::7] = 0
    call = AttentionCall(SequenceInfo(causal=causal), 1.0, 0)
    check_best_keys(search, query, key, value, call)
    _, ids = select(search, "native", query, key, value, call)
    assert (ids >= 0).all() or causal
    assert (ids[:, :, 50:] >= 0).all()
