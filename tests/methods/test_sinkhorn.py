"""Sinkhorn attention by hand, against its formula block by block, and in its exact limit."""

import torch

from methods.base import SequenceInfo
from methods.parts.blocks import Blocks
from methods.sinkhorn import balanced, sorted_attention
from tests.methods.input_a import A, call, close, inputs


def sorting_of(logits, iterations=8):
    return balanced(logits, torch.ones(1, logits.shape[-1], dtype=torch.bool), iterations)


def test_two_blocks_by_hand():
    sorting = sorting_of(torch.tensor([[[[0.0, 1], [2, 0]]]]))
    close(sorting, 0.182506, 0.817655, 0.817494, 0.182345)
    output = sorted_attention(*A, sorting, Blocks.of(SequenceInfo(), A[0], 2), call())
    close(output, 1.997898, 2.637625, 2.682224, 2.305038)


def test_equals_its_formula_block_by_block():
    (q, k, v), b = inputs(12), 3
    sorting = sorting_of(torch.randn(2, 2, 4, 4, dtype=torch.float64))
    output = sorted_attention(q, k, v, sorting, Blocks.of(SequenceInfo(), q, b), call())
    for i in range(4):
        own = slice(i * b, (i + 1) * b)
        keys, values = (
            torch.cat((x[:, :, own], sum(
                sorting[:, :, i, j, None, None] * x[:, :, j * b : (j + 1) * b] for j in range(4)
            )), 2)
            for x in (k, v)
        )  # fmt: skip
        expected = (q[:, :, own] @ keys.mT).softmax(-1) @ values
        torch.testing.assert_close(output[:, :, own], expected)


def test_weights_sum_to_one_where_those_of_the_sorting_do():
    q, k, v = inputs(10)  # the last block is not full
    sorting = sorting_of(torch.randn(2, 2, 4, 4, dtype=torch.float64), iterations=200)
    output = sorted_attention(
        q, k, torch.ones_like(v), sorting, Blocks.of(SequenceInfo(), q, 3), call()
    )
    torch.testing.assert_close(output, torch.ones_like(v))
