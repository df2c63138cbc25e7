"""Linformer against its formula, by hand, and in its exact limit."""

import pytest
import torch

from methods.base import SequenceInfo, Workload
from methods.linformer import Linformer
from tests.methods.input_a import A, call, close, drawn, inputs


def test_pairs_of_tokens_averaged_by_hand():
    pairs = torch.tensor([[[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]])
    method = Linformer(k=2, n=4, sharing="key-value")
    close(method.attend(*A, call({"E": pairs})), 1.738406, 3.261594, 2.5, 1.535972)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value"])
def test_equals_its_formula(sharing):
    method = Linformer(k=3, n=16, sharing=sharing)
    own, (q, k, v) = drawn(method, 2, 4), inputs(11)
    e, f = own["E"][..., :11], own.get("F", own["E"])[..., :11]
    expected = (q @ (e @ k).mT * 0.5).softmax(-1) @ (f @ v)
    torch.testing.assert_close(method.attend(q, k, v, call(own, scale=0.5)), expected)


@pytest.mark.parametrize(("init", "std"), [("paper", 0.25), ("lra", 0.0315)])
def test_initial_values(init, std):
    """LRA's have the variance of Glorot's: 2 / (2000 + 16)."""
    own = Linformer(k=16, n=2000, init=init).own_parameters(Workload(2000, 1, 2, 32, 2, 64), 0)
    assert [one.std for one in own.values()] == pytest.approx([std, std], rel=1e-3)


def test_a_token_counts_as_many_times_as_its_multiplicity_says():
    method = Linformer(k=3, n=4, sharing="key-value")
    own, (q, k, v) = drawn(method, 2, 4), inputs(4, batch=1)
    counts = torch.tensor([[1.0, 2, 1, 3]], dtype=torch.float64)
    output = method.attend(q, k, v, call(own, SequenceInfo(log_multiplicity=counts.log())))
    weighted = {"E": own["E"] * counts}
    torch.testing.assert_close(output, method.attend(q, k, v, call(weighted)))
