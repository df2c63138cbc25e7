"""Sparse Transformer against dense attention under its mask, and by hand."""

import pytest
import torch

from methods.sparse_transformer import SparseTransformer
from tests.methods.hand import A, Slope, call_of, check_rows, inputs, masked, read, slope


def twin(method):
    l, c = method.l, method.c  # noqa: E741

    def attend(query, key, value, call):
        n = query.shape[2]
        i, j = torch.arange(n)[:, None], torch.arange(n)[None]
        if method.pattern == "strided":
            seen = ((i - j).abs() < l) | ((i - j) % l == 0)
        else:
            seen = (i // l == j // l) | (j % l >= l - c)
        return masked(query, key, value, call, seen & (j <= i) if call.sequence.causal else seen)

    return attend


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "causal"])
@pytest.mark.parametrize("pattern", ["fixed", "strided"])
def test_equals_its_twin(pattern, causal, biased):
    method = SparseTransformer(pattern, 8, 3)
    bias = slope() if biased else None
    for n in (53, 64):
        check_rows(method, twin(method), n, counted=n == 64, bias=bias, causal=causal)


def test_by_hand():
    strided = read(SparseTransformer("strided", 2, 1), *A, causal=True)
    assert strided == pytest.approx([1.0, 1.268941, 2.0, 2.038313], abs=1e-6)
    fixed = read(SparseTransformer("fixed", 2, 1), *A, causal=True)
    assert fixed == pytest.approx([1.0, 1.268941, 2.5, 2.038313], abs=1e-6)


@pytest.mark.parametrize("pattern", ["fixed", "strided"])
def test_bias_is_never_n_by_n(pattern):
    bias, n, method = Slope(torch.ones(2)), 400, SparseTransformer(pattern, 20, 2)
    method.attend(*inputs(n), call_of(0, bias))
    assert bias.largest < n * n / 4
