"""The oracle of sparse prefill against dense attention under its mask, and by hand."""

from dataclasses import replace

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.oracle_blocks import OracleBlocks
from methods.vanilla import Vanilla
from methods.xattention import XAttention
from tests.methods.hand import heads
from tests.methods.native import native
from tests.methods.prefill import SCALE, by_token, check_kernels, check_twin, inputs

CALL = AttentionCall(SequenceInfo(causal=True), SCALE, 0)
SMALL = OracleBlocks(block=8, threshold=0.8)


def block_weights(query, key, scale, size):
    """[blocks, blocks], pair by pair."""
    n = len(key)
    blocks = -(-n // size)
    weights = torch.zeros(blocks, blocks, dtype=key.dtype)
    for i in range(n):
        for j, weight in enumerate((key[: i + 1] @ query[i] * scale).softmax(0)):
            weights[i // size, j // size] += weight
    return weights


def chosen(method, query, key, scale):
    """[blocks, blocks] bool"""
    weights = block_weights(query, key, scale, method.block)
    result = torch.zeros_like(weights, dtype=torch.bool)
    for i, row in enumerate(weights):
        ranked = row.argsort(descending=True).tolist()
        most = len(row) if method.budget is None else max(1, round(method.budget * (i + 1)))
        for j in ranked[:most]:
            if method.budget or row[result[i]].sum() < method.threshold * row.sum():
                result[i, j] = True
    return result


@pytest.mark.parametrize("method", [SMALL, replace(SMALL, budget=0.4)], ids=str)
def test_equals_its_twin(method):
    """Without a forced block."""

    def seen(query, key, scale):
        return by_token(chosen(method, query, key, scale), len(key))

    check_twin(method, seen, lengths=(1, 2, 53, 64), forced=False)


def test_by_hand():
    """Blocks of 2; the last two queries have the weights .5 .2 .1 .1 .1 and .3 .3 .1 .1 .1 .1: 1.3,
    .4 and .3 in blocks. The share .6 of 2 is 1.2: the first block; .8 takes the second
    too, and half of three blocks is two. Values 1 and 2 of the first block have equal weights."""
    logs = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1, 1e-30], [0.3, 0.3, 0.1, 0.1, 0.1, 0.1]]).log()
    query = torch.cat((torch.zeros(4, 6), logs))[None]
    method = OracleBlocks(block=2)
    weights = method.block_weights(query, torch.eye(6), 1.0)
    torch.testing.assert_close(weights[0, 2], torch.tensor([1.3, 0.4, 0.3]))
    for changed, expected in (
        ({"threshold": 0.6}, [True, False, False]),
        ({"threshold": 0.8}, [True, True, False]),
        ({"budget": 0.5}, [True, True, False]),
    ):
        _, _, choice = replace(method, **changed).read(query, torch.eye(6), torch.eye(6), 1.0)
        assert choice.chosen[0, 2].tolist() == expected
    value = heads((1.0,) * 6, (2.0,) * 6, (0.0,) * 6, (0.0,) * 6, (9.0,) * 6, (9.0,) * 6).float()
    call = AttentionCall(SequenceInfo(causal=True), 1.0, 0)
    output = replace(method, threshold=0.6).attend(
        query[None], torch.eye(6)[None, None], value, call
    )
    assert float(output[0, 0, 5, 0]) == pytest.approx(1.5)


def test_xattentions_tiles_of_one_pair_estimate_these_weights_exactly():
    query, key, _ = (x[0] for x in inputs(101))
    ours = SMALL.block_weights(query[:2], key[0], SCALE)
    theirs = XAttention(block=8, stride=1).block_weights(query[:2], key[0], SCALE)
    torch.testing.assert_close(ours, theirs)


@native
@pytest.mark.parametrize("method", [OracleBlocks(64, 0.5), OracleBlocks(budget=0.3)], ids=str)
def test_native_kernel_agrees(method):
    check_kernels(method, n=700)


def test_its_limit_is_exact():
    parts = inputs(61)
    exact = Vanilla().attend(*parts, CALL)
    for limit in (replace(SMALL, threshold=1.0), replace(SMALL, budget=1.0)):
        torch.testing.assert_close(limit.attend(*parts, CALL), exact)
    assert not torch.allclose(SMALL.attend(*parts, CALL), exact)
