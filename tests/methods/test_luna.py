"""Luna by hand, and its packed sequence from layer to layer."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import layer_norm

from methods.base import Workload
from methods.luna import Luna, LunaInfo
from tests.methods.input_a import Identity, call, close, drawn

X = torch.tensor([1.0, -1, 0, 2]).view(1, 4, 1)


def test_identity_projections_by_hand():
    own = {"P": torch.tensor([[1.0], [-1]])}
    for name in ("query", "key", "value"):
        own |= {f"p_{name}": torch.ones(1, 1), f"p_{name}_bias": torch.zeros(1)}
    info = LunaInfo()
    close(Luna(l=2).mix(X, Identity(), call(own, info)), 1.252918, -0.252918, 0.5, 1.455899)
    close(info.packed[0] - own["P"], 1.492653, -0.492653)


def test_the_next_layer_packs_with_the_norm_of_the_sum():
    method, hidden = Luna(l=3), torch.randn(2, 7, 8, dtype=torch.float64)
    info = LunaInfo()
    first, second = (drawn(method, 1, 8, layer=layer, seed=layer) for layer in (0, 1))
    method.mix(hidden, Identity(), call(first, info))
    output = method.mix(hidden, Identity(), replace(call(second, info), layer=1))
    p = layer_norm(info.packed[0], (8,), second["gain"], second["bias"])

    def projected(x, name):
        return x @ second[f"p_{name}"].T + second[f"p_{name}_bias"]

    scores = projected(p, "query") @ projected(hidden, "key").mT
    packed = scores.softmax(-1) @ projected(hidden, "value")
    torch.testing.assert_close(output, (hidden @ packed.mT).softmax(-1) @ packed)


def test_the_packed_sequence_belongs_to_the_first_layer():
    names = drawn(Luna(), 1, 8).keys()
    assert "P" in names and "gain" not in names
    assert "P" not in drawn(Luna(), 1, 8, layer=1)
    assert "p_value" not in drawn(Luna(tied=True), 1, 8)


@pytest.mark.parametrize(("init", "std"), [("paper", 0.25), ("lra", 0.25 / 2**0.5)])
def test_initial_values(init, std):
    own = Luna(init=init).own_parameters(Workload(64, 1, 2, 8, 2, 16), 0)
    assert own["P"].std == 0.25
    drawn = [own[f"p_{name}"].std for name in ("query", "key", "value")]
    assert drawn == pytest.approx([std] * 3)
