"""Padded batches: how often a method is called for one, and that each row is read alone."""

import pytest
import torch

from methods.h_transformer_1d.h_transformer_1d import HTransformer1D
from methods.local_attention import LocalAttention
from methods.mra import MRA
from methods.nystromformer import Nystromformer
from methods.parts.sequence import padding_last, without_padding
from tests.methods.hand import call_of, inputs, padded

N = 40
TWICE = padded(N).repeat(2, 1)
"""Each mask twice, the same ones apart."""


@pytest.mark.parametrize("read, calls", [(padding_last, 1), (without_padding, 3)])
def test_calls_for_a_padded_batch(read, calls):
    seen = []

    def attend(query, key, value, call, *_):
        seen.append(query.shape)
        return value

    _, _, value = inputs(N, 6)
    output = read(attend, *inputs(N, 6), call_of(valid=TWICE))
    torch.testing.assert_close(output, value * TWICE[:, None, :, None])
    assert len(seen) == calls


def test_a_row_without_a_token_is_zero():
    valid = torch.stack((torch.ones(N, dtype=torch.bool), torch.zeros(N, dtype=torch.bool)))
    for method in (LocalAttention(7), Nystromformer(5), HTransformer1D(2), MRA(4, 2)):
        leaves = [x.requires_grad_() for x in inputs(N, 2)]
        output = method.attend(*leaves, call_of(valid=valid))
        assert not output[1].any()
        output.sum().backward()
        assert all(bool(x.grad.isfinite().all()) for x in leaves)
