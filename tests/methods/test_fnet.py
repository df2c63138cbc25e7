"""FNet by hand, against the sums of its definition, and without padding."""

import pytest
import torch

from methods.base import SequenceInfo, Unsupported
from methods.fnet import FNet
from tests.methods.input_a import Identity, call

MIX = FNet().mix


def test_two_tokens_by_hand():
    hidden = torch.tensor([[[1.0, 2], [3, 4]]])
    expected = torch.tensor([[[10.0, -2], [-4, 0]]])
    torch.testing.assert_close(MIX(hidden, Identity(), call()), expected)


def test_equals_the_sums_of_its_definition():
    hidden = torch.randn(1, 5, 6, dtype=torch.float64)
    over_n, over_d = (torch.arange(size, dtype=torch.float64) for size in (5, 6))
    angle = over_n[:, None, None, None] * over_n[:, None] / 5  # out n, 1, in n, 1
    angle = angle + over_d[None, :, None, None] * over_d / 6
    expected = torch.einsum("nmxy,bxy->bnm", (2 * torch.pi * angle).cos(), hidden)
    torch.testing.assert_close(MIX(hidden, Identity(), call()), expected)


def test_a_causal_sequence_is_unsupported():
    with pytest.raises(Unsupported, match="encoders"):
        MIX(torch.ones(1, 2, 2), Identity(), call(sequence=SequenceInfo(causal=True)))
