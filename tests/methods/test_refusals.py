"""What methods refuse: the future, a position bias, parameters that don't go together."""

import pytest
import torch

from methods.base import Unsupported
from methods.bigbird.bigbird import BigBird
from methods.h_transformer_1d.h_transformer_1d import HTransformer1D
from methods.lara import LARA
from methods.linear_transformer import LinearTransformer
from methods.local_attention import LocalAttention
from methods.mra import MRA
from methods.nystromformer import Nystromformer
from methods.performer import Performer
from methods.reformer.reformer import Reformer
from methods.xattention import XAttention
from tests.methods.hand import call_of, inputs
from tests.methods.slope import Slope

CAUSAL = [BigBird(), LARA(), LocalAttention(), MRA(), Nystromformer(), Reformer()]
BIASED = [HTransformer1D(), LARA(), LinearTransformer(), MRA(), Nystromformer(), Performer()]


@pytest.mark.parametrize("method", CAUSAL, ids=str)
def test_a_causal_call_is_refused(method):
    with pytest.raises(Unsupported, match=r"future|causal|nothing but itself|encoders"):
        method.attend(*inputs(5), call_of(causal=True))


@pytest.mark.parametrize("method", BIASED, ids=str)
def test_a_position_bias_is_refused(method):
    with pytest.raises(Unsupported, match="position bias"):
        method.attend(*inputs(5), call_of(bias=Slope(torch.ones(2))))


def test_parameters_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="m=null needs features=relu"):
        Performer(m=None)
    with pytest.raises(ValueError, match="block is 100; it takes a multiple of stride=16"):
        XAttention(block=100)
