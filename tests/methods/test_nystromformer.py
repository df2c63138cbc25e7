"""Nyströmformer against its formula with the true pseudoinverse, and by hand."""

import dataclasses

import pytest
import torch

from methods.nystromformer import Nystromformer, pseudoinverse
from tests.methods.hand import A, call_of, heads, inputs, padded, read, row_by_row


def twin(m):
    def attend(query, key, value, call):
        n = query.shape[2]
        counts = torch.ones(1, n, dtype=torch.float64)
        if call.sequence.log_multiplicity is not None:
            counts = call.sequence.log_multiplicity.exp()
        weights = torch.zeros(m, n, dtype=torch.float64)
        weights[torch.arange(n) * m // n, torch.arange(n)] = counts[0]
        means = weights / weights.sum(-1, keepdim=True)
        q, k = means @ query, means @ key
        front, middle = ((x @ k.mT * call.scale).softmax(-1) for x in (query, q))
        back = (q @ key.mT * call.scale + counts.log()).softmax(-1)
        return front @ torch.linalg.pinv(middle) @ back @ value

    return attend


def test_equals_its_twin():
    n = 53
    counts = torch.arange(1.0, 2 * n + 1, dtype=torch.float64).view(2, n).log()
    call = call_of(valid=padded(n)[:2], log_multiplicity=counts)
    output = Nystromformer(5, iterations=40).attend(*inputs(n, 2), call)
    expected = row_by_row(twin(5), *inputs(n, 2), call)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)


def test_by_hand():
    exact = [1.969464, 3.030536, 2.5, 1.828447]
    assert read(Nystromformer(2), *A) == pytest.approx(exact, abs=1e-6)
    once = [2.323000, 1.705145, 2.014073, 2.405113]
    assert read(Nystromformer(2, iterations=1), *A) == pytest.approx(once, abs=1e-6)


def test_a_stretch_counts_its_own_tokens():
    """The official code's mean counts padding: 1.576717 2.423283 1.743162."""
    example = heads(1, -1, 0.5, 9), heads(1, 2, -1, 9), heads(1, 2, 3, 9)
    valid = torch.tensor([[True, True, True, False]])
    output = read(Nystromformer(2), *example, valid=valid)
    assert output == pytest.approx([1.679489, 2.320511, 1.790453, 0], abs=1e-6)


def test_pseudoinverse_of_one_matrix_ignores_the_others():
    make = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 8, 8, generator=make, dtype=torch.float64).softmax(-1)
    together = pseudoinverse(matrices, 3)
    torch.testing.assert_close(together[:1], pseudoinverse(matrices[:1], 3))
    torch.testing.assert_close(pseudoinverse(matrices, 60), matrices.inverse())


def test_convolution_of_the_values_is_added():
    query, key, value = inputs(30)
    weight = torch.tensor([[1.0, 2, 3], [4, 5, 6]], dtype=torch.float64).view(2, 1, 3, 1)
    call = dataclasses.replace(call_of(), parameters={"convolution": weight})
    added = Nystromformer(4, convolution=3).attend(query, key, value, call)
    added = added - Nystromformer(4).attend(query, key, value, call)
    w = weight.view(1, 2, 3, 1)
    expected = w[:, :, 1:2] * value
    expected[:, :, 1:] += w[:, :, :1] * value[:, :, :-1]
    expected[:, :, :-1] += w[:, :, 2:] * value[:, :, 1:]
    torch.testing.assert_close(added, expected)
