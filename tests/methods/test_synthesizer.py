"""Synthesizer by hand, its three forms against each other, and as exact attention."""

import pytest
import torch

from methods.base import SequenceInfo, Workload
from methods.parts.attention import exact_attention
from methods.synthesizer import Synthesizer
from tests.methods.hand import slope
from tests.methods.input_a import A, Identity, call, close, drawn, inputs

R1, R2 = (torch.tensor(x).view(1, 4, 1) for x in ([1.0, 0, -1, 1], [0.0, 1, -1, 2]))
CAUSAL = SequenceInfo(causal=True)


@pytest.mark.parametrize("form", ["factorised", "random"])
def test_a_factorised_matrix_by_hand(form):
    own = {"R1": R1, "R2": R2, "R": R1 @ R2.mT}
    output = Synthesizer(form, k=1, n=4).attend(*A, call(own))
    close(output, 3.232743, 2.5, 2.471149, 3.232743)


def test_the_dense_form_by_hand():
    points = torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 1]])
    own = {
        "W1": torch.tensor([[[1.0, -1], [0, 1]]]),
        "b1": torch.zeros(1, 2),
        "W2": points[None],
        "b2": torch.zeros(1, 4),
    }

    class Values(Identity):
        def value(self, hidden):
            return A[2]

    output = Synthesizer("dense", n=4).mix(points[None], Values(), call(own))
    close(output, 2.108129, 2.781536, 2.781536, 2.781536)


@pytest.mark.parametrize("sequence", [SequenceInfo(), CAUSAL], ids=["encoder", "causal"])
def test_factors_that_are_queries_and_keys_give_exact_attention(sequence):
    q, k, v = inputs(9, batch=1)
    own = {"R1": q[0] * 0.5**0.5, "R2": k[0] * 0.5**0.5}
    output = Synthesizer(n=9).attend(q, k, v, call(own, sequence))
    torch.testing.assert_close(output, exact_attention(q, k, v, call({}, sequence, 0.5)))


def test_a_position_bias_is_added_to_either_form():
    own = drawn(Synthesizer(n=16, k=3), 2, 4)
    own["R"] = own["R1"] @ own["R2"].mT
    one, other = (
        Synthesizer(form, k=3, n=16).attend(*inputs(9), call(own, bias=slope()))
        for form in ("random", "factorised")
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("form", "paper", "lra"),
    [
        ("random", {"R": 1.0}, {"R": (1 / 200) ** 0.5}),
        ("factorised", dict.fromkeys(("R1", "R2"), 0.5), dict.fromkeys(("R1", "R2"), 0.0932505)),
        ("dense", {"W1": 0.25, "W2": 0.5}, {"W1": (1 / 12) ** 0.5, "W2": (1 / 52) ** 0.5}),
    ],
)
def test_initial_values(form, paper, lra):
    """LRA's have the variance of Glorot's: of n = 100 tokens, k = 15 or 16, two heads of size 4 and
    16 hidden features."""
    for init, k, expected in (("paper", 16, paper), ("lra", 15, lra)):
        method = Synthesizer(form, k=k, n=100, init=init)
        own = method.own_parameters(Workload(100, 1, 2, 4, 2, 16), 0)
        drawn = {name: one.std for name, one in own.items() if one.std}
        assert drawn == pytest.approx(expected, rel=1e-5)
