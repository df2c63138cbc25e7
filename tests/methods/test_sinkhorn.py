"""Sinkhorn attention by hand, against its formula block by block, and in its exact limit."""

import torch

from methods.base import SequenceInfo, Workload
from methods.parts.blocks import Blocks
from methods.sinkhorn import Sinkhorn, balanced, sorted_attention
from tests.methods.input_a import A, Identity, call, close, inputs


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


class Heads(Identity):
    """A sub-layer whose query, key and value are given, and whose output is what was read."""

    def __init__(self, query, key, value):
        self.query, self.key, self.value = (lambda _, x=x: x for x in (query, key, value))

    def output(self, read):
        return read


def by_lra(query, key, value, b=2, sequence=None, scale=1.0):
    method = Sinkhorn(b=b, form="lra")
    return method.mix(query[:, 0], Heads(query, key, value), call({}, sequence, scale))


def test_lra_s_form_by_hand():
    """Tokens 1 and 3, 2 and 4 in a block; sums of tokens 1 and 2, and of 3 and 4."""
    close(by_lra(*A), 4.310351, 10.689649, 7.0, 5.037313)


def test_lra_s_form_equals_its_einsum():
    """With any sorting P whose rows sum to 1."""
    (q, k, v), b, n_blocks = inputs(12), 3, 4
    query, key, value = (x.transpose(1, 2).view(2, b, n_blocks, 2, 4) for x in (q, k, v))
    p = torch.randn(2, n_blocks, 2, n_blocks, dtype=torch.float64).softmax(-1)
    moved = [torch.einsum("bskhd,bnhl->bsnhd", x, p) for x in (key, value)]
    expected = sum(
        torch.einsum(
            "bnhst,btnhd->bsnhd",
            (0.5 * torch.einsum("bsnhd,btnhd->bnhst", query, keys)).softmax(-1),
            values,
        )
        for keys, values in ((key, value), moved)
    )
    output = by_lra(q, k, v, b, scale=0.5)
    torch.testing.assert_close(output, expected.reshape(2, 12, 2, 4).transpose(1, 2))


def test_lra_s_weights_sum_to_one_and_the_number_of_blocks():
    q, k, v = inputs(12)
    torch.testing.assert_close(by_lra(q, k, torch.ones_like(v), 3), torch.full_like(v, 1 + 4))


def test_a_row_of_lra_s_form_is_as_alone_with_padding():
    q, k, v = inputs(11)
    valid = torch.ones(2, 11, dtype=torch.bool)
    valid[0, :4] = False  # on the left
    output = by_lra(q, k, v, 3, SequenceInfo(valid=valid))
    torch.testing.assert_close(output[:1, :, 4:], by_lra(*(x[:1, :, 4:] for x in (q, k, v)), 3))
    torch.testing.assert_close(output[1:], by_lra(*(x[1:] for x in (q, k, v)), 3))


def test_lra_s_form_has_no_parameters():
    method = Sinkhorn(form="lra")
    assert not method.own_parameters(Workload(64, 1, 2, 4, 2, 8), 0)
    assert method.exact_limit() is None
