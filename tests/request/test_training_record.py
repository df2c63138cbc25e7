"""The record in a model's folder of the training of its weights."""

import json

import pytest

from bench.request import plugins
from bench.request.weights import training_of

SHIPPED = ("t5", "bart", "llama", "roberta", "lra-image", "lra-image-fourier", "lra-text-vcc")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_says_how_it_was_trained(name):
    record = training_of({"path": plugins.ROOT / "bench/models/embedded" / name})
    assert set(record) == {"from", "steps", "hours", "supervision"}
    assert record["from"] and record["hours"] > 0 and record["supervision"]
    assert record["steps"] is None or record["steps"] > 0
    assert (record["from"] == "lra-text") == (name == "lra-text-vcc")


@pytest.mark.parametrize("text", [None, "minutes: 3", "a: b: c", "training: long", "- 1"])
def test_a_folder_that_does_not_say_gives_none(text, tmp_path):
    if text is not None:
        (tmp_path / "card.yaml").write_text(text)
    assert training_of({"path": tmp_path}) is None


def test_what_a_card_leaves_out_is_unknown(tmp_path):
    (tmp_path / "card.yaml").write_text("training: {hours: 2, machine: big}")
    record = {"from": None, "steps": None, "hours": 2, "supervision": None}
    assert training_of({"path": tmp_path}) == record
    assert training_of({"path": tmp_path, "config": {"hidden_size": 8}}) is None, "random weights"


@pytest.mark.parametrize(("start", "origin"), [(None, "random weights"), ("e" * 64, "t5-base")])
def test_a_recipes_card_gives_steps_and_hours(start, origin, tmp_path):
    card = {"task": "qmsum", "best_step": 20, "wall_ns": 18 * 10**11, "model": "t5-base",
            "protocol": "swap"}  # fmt: skip
    (tmp_path / "card.json").write_text(json.dumps(card))
    model = {"path": tmp_path, "training": "key", "start_sha256": start, "config": {}}
    record = training_of(model)
    assert (record["from"], record["steps"], record["hours"]) == (origin, 20, 0.5)
    assert training_of({"path": tmp_path})["from"] == "t5-base"
