"""A method's own parameters: made, stored and loaded with the model's weights."""

import json
from types import SimpleNamespace

import pytest
import torch

from bench.execution import arms
from bench.models.base import Spec
from bench.models.lra import LRAFamily
from bench.models.own_parameters import NAME
from bench.models.t5 import T5Family
from bench.train import checkpoint
from methods.base import Method, OwnParameter, Unsupported
from methods.vanilla import Vanilla


class Drawn(Method):
    """Adds a learned vector of each layer to what attention reads."""

    size = 8

    def attend(self, query, key, value, call):
        return super().attend(query, key, value, call) + call.parameters["added"]

    def own_parameters(self, workload, layer):
        return {"added": OwnParameter((self.size,), std=1.0)}


class Copied(Method):
    """Reads values through a copy of the layer's projection."""

    def own_parameters(self, workload, layer):
        inner = workload.heads * workload.head_size
        size = (inner, workload.hidden_size)
        return {
            "weight": OwnParameter(size, copy_of="value.weight"),
            "bias": OwnParameter((inner,), copy_of="value.bias"),
        }


def saved(family, folder):
    checkpoint.save_weights(folder, family.model, 1)
    family.model.config.save_pretrained(folder)
    return Spec("tiny", folder)


def own_of(family):
    return {name: w for name, w in family.model.named_parameters() if name.startswith(NAME)}


def test_they_are_parts_of_the_model_drawn_from_the_seed():
    one, other = (LRAFamily.tiny(Drawn(), seed) for seed in (1, 2))
    names = [f"{NAME}.{layer}.added" for layer in range(3)]
    assert [*own_of(one)] == names
    again = own_of(LRAFamily.tiny(Drawn(), 1))
    assert all(torch.equal(again[name], own_of(one)[name]) for name in names)
    assert not torch.equal(own_of(one)[names[0]], own_of(other)[names[0]])
    assert not torch.equal(own_of(one)[names[0]], own_of(one)[names[1]])


def test_another_method_in_the_model_leaves_them_as_they_are():
    family = LRAFamily.tiny(Drawn())
    own_of(family)[f"{NAME}.1.added"].data.fill_(3)
    family.method = Vanilla()
    family.method = Drawn()
    assert (own_of(family)[f"{NAME}.1.added"] == 3).all()


def test_a_checkpoint_holds_them(tmp_path):
    family = LRAFamily.tiny(Drawn())
    for value, weight in enumerate(own_of(family).values()):
        weight.data.fill_(value)
    loaded = LRAFamily.load(saved(family, tmp_path), Drawn(), "float32", "cpu")
    assert [float(weight.detach()[0]) for weight in own_of(loaded).values()] == [0, 1, 2]
    assert not loaded.drawn and loaded.model.dtype == torch.float32
    assert not own_of(LRAFamily.load(Spec("tiny", tmp_path), Vanilla(), "float32", "cpu"))


def test_those_of_another_size_are_an_error(tmp_path):
    spec = saved(LRAFamily.tiny(Drawn()), tmp_path)
    wider = Drawn()
    object.__setattr__(wider, "size", 1)
    with pytest.raises(ValueError, match=r"0\.added of shape \(8,\); this request's has \(1,\)"):
        LRAFamily.load(spec, wider, "float32", "cpu")


def test_copies_start_as_the_layers_own_weights(tmp_path):
    spec = saved(LRAFamily.tiny(Vanilla()), tmp_path)
    loaded = LRAFamily.load(spec, Copied(), "float32", "cpu")
    assert not loaded.drawn
    for layer, block in enumerate(loaded.model.layers):
        own = loaded.model.method_parameters[layer]
        assert torch.equal(own["weight"], block.value.weight)
        assert torch.equal(own["bias"], block.value.bias)
    assert not T5Family.tiny(Copied()).model.method_parameters[0]["bias"].any()  # T5 has none


REQUEST = SimpleNamespace(
    length=8, batch=8, seed=0, new_tokens=None, device={"kind": "cpu"},
    model={"name": "tiny", "family": "bench.models.lra:LRAFamily"},
)  # fmt: skip
"""What of a cell `arms.load` needs."""


def test_weights_without_them_are_unsupported_unless_they_are_trained(tmp_path):
    spec = saved(LRAFamily.tiny(Vanilla()), tmp_path)
    with pytest.raises(
        Unsupported, match=r"has parameters of its own: these weights lack 3, first"
    ):
        arms.load(REQUEST, Drawn(), start=spec.path)
    family = arms.load(REQUEST, Drawn(), training=True, start=spec.path)
    assert family.drawn == ["0.added", "1.added", "2.added"]
    arms.load(REQUEST, Copied(), start=spec.path)
    config = json.loads((tmp_path / "config.json").read_text())
    sized = SimpleNamespace(**{**vars(REQUEST), "model": {**REQUEST.model, "config": config}})
    arms.load(sized, Drawn(), start=spec.path)  # all weights are random
