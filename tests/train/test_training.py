"""Protocols and checkpoints: valid combinations, changes that make another checkpoint, and
errors."""

import json
import re

import pytest

import bench
from bench.errors import RequestError
from bench.request import compose, parameters, plugins, weights
from bench.request.schema import RecipeConf
from tests.conftest import ROOT

WORDS = (
    "recipe=lra_small_listops", "length=64", "n=4", "threads=1", "recipe.rows=64",
    "recipe.dev_rows=8", "recipe.steps=4", "recipe.batch=8",
)  # fmt: skip


def cell(tmp_path, *words):
    return bench.compose(*WORDS, f"checkpoints={tmp_path}", *words)


def trained_key(tmp_path, *words):
    return cell(tmp_path, *words).model["training"]


def test_a_recipe_says_the_task_the_model_and_the_protocol(tmp_path):
    composed = cell(tmp_path, "method=bigbird")
    assert (composed.task["name"], composed.model["name"]) == ("lra_listops", "lra-small-listops")
    assert composed.protocol == "from-scratch" and composed.model["weights"] == "from-scratch"
    assert (
        composed.model["config"]["num_labels"] == 10
        and composed.model["config"]["vocab_size"] == 16
    )
    assert composed.model["weights_sha256"] is None, "nothing is trained yet"


@pytest.mark.parametrize(
    "word",
    ["method.block_size=32", "length=65", "seed=1", "recipe.lr=0.1", "recipe.steps=5",
     "recipe.rows=65", "recipe.dtype=bfloat16", "model.config.hidden_size=32"],
)  # fmt: skip
def test_whatever_shapes_the_weights_makes_another_checkpoint(tmp_path, word):
    assert trained_key(tmp_path, "method=bigbird") != trained_key(tmp_path, "method=bigbird", word)


@pytest.mark.parametrize("word", ["n=5", "batch=2", "threads=2", "measure=quality",
                                  "recipe.save_every=7", "dtype=bfloat16"])  # fmt: skip
def test_a_checkpoint_serves_every_cell_that_asks_for_the_same(tmp_path, word):
    assert trained_key(tmp_path, "method=bigbird") == trained_key(tmp_path, "method=bigbird", word)


def test_swapped_methods_share_vanillas_checkpoint_and_are_other_cells(tmp_path):
    vanilla = cell(tmp_path, "method=vanilla")
    swapped = [cell(tmp_path, f"method={m}", "protocol=swap") for m in ("bigbird", "iceformer")]
    assert {c.model["training"] for c in swapped} == {vanilla.model["training"]}
    assert len({c.key for c in [vanilla, *swapped]}) == 3
    assert {c.model["weights"] for c in swapped} == {"pretrained-swap"}
    own = cell(tmp_path, "method=bigbird")
    assert own.model["training"] != vanilla.model["training"]
    assert own.baseline().model["training"] == vanilla.model["training"]


def test_the_cell_keeps_its_key_when_its_weights_are_there(tmp_path):
    before = cell(tmp_path, "method=vanilla")
    place = tmp_path / before.model["path"].rsplit("/", 1)[-1]
    place.mkdir()
    (place / "config.json").write_text('{"model_type": "lra"}')
    (place / "model.safetensors").write_bytes(b"weights")
    (place / weights.CARD).write_text(json.dumps({"task": "lra_listops"}))
    after = before.trained()
    assert after.key == before.key == cell(tmp_path, "method=vanilla").key
    assert after.model["weights_sha256"] and after.prediction_key != before.prediction_key
    with pytest.raises(RequestError, match="was trained for task lra_listops, not for lra_text"):
        bench.compose(f"model={place}", "task=lra_text", "n=2", "length=64")


def test_the_embedded_model_is_adapted_by_default_and_swapped_on_request():
    words = ("method=vcc", "length=512", "n=2")
    assert bench.compose(*words).protocol == "finetune"
    swapped = bench.compose(*words, "protocol=swap")
    assert swapped.model["weights_sha256"] == swapped.baseline().model["weights_sha256"]
    assert swapped.model["weights_sha256"] != bench.compose(*words).model["weights_sha256"]
    assert bench.compose(*words, "protocol=zero-shot").key != swapped.key


def test_hub_weights_asked_with_no_training_are_zero_shot(tiny_t5):
    words = (f"model={tiny_t5}", "length=256", "n=2")
    assert bench.compose(*words).model["weights"] == "pretrained-swap"
    assert bench.compose(*words, "protocol=zero-shot").model["weights"] == "zero-shot"


def test_a_recipe_brings_the_parameters_that_it_trains_a_method_with():
    """VCC learns its selection as in the official code; a request's `explore` is not changed."""

    def composed(*words):
        return compose.compose(["recipe=vcc_qasper", *words])

    def of_vcc(*words):
        method = composed("method=vcc", *words)["method"]
        return method["straight_through"], method["explore"]

    assert of_vcc() == (True, 0.1)
    assert of_vcc("method.explore=0") == (True, 0.0)
    assert of_vcc("protocol=swap") == (False, 0.0)
    assert "straight_through" not in composed("method=vanilla")["method"]


RECIPES = sorted(
    path.stem for path in (ROOT / "conf/recipe").glob("*.yaml") if "@package" in path.read_text()
)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_and_says_what_it_costs(name):
    request = compose.compose([f"recipe={name}"])
    assert request["recipe"]["name"] == name
    parameters.check_values(request)
    assert set(request["recipe"]) == set(RecipeConf.__dataclass_fields__) - {"trained_with"}
    assert weights.protocol_of(request) in ("from-scratch", "finetune", "swap")
    model, task = weights.sized(request["model"], request["task"]), request["task"]
    if model["config"]:
        limit = model["config"]["max_position_embeddings"]
        assert request["length"] + (model["config"].get("pooling") == "cls") <= limit
        assert bool(model["config"].get("dual")) == (task["name"] == "lra_retrieval")
    about = (ROOT / f"conf/recipe/{name}.yaml").read_text()
    header = about[: about.index("defaults:")]
    for needed in (f"bench train recipe={name}", "cost:", "expected:"):
        assert needed in header, f"the header doesn't say {needed}"
    assert plugins.about(ROOT / f"conf/recipe/{name}.yaml")


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if re.fullmatch("lra_(?!small).*", name)]
)
def test_an_lra_recipe_is_its_harness_s_or_names_the_difference(name):
    """Both harnesses use AdamW with ε = 1e-6 and do not clip gradients; the one of Fourier
    Transformer has as much dropout of attention as of anything else, as the model's default."""
    request = compose.compose([f"recipe={name}"])
    assert (request["recipe"]["eps"], request["recipe"]["clip"]) == (1e-6, 0)
    about = (ROOT / f"conf/recipe/{name}.yaml").read_text()
    if "shorter task's recipe" in about.replace("\n# ", " "):
        return
    assert "OneCycle" in about and "β₁" in about
    named = "model.config.attention_dropout=0.1" in about
    assert named == (request["model"]["config"].get("attention_dropout") == 0)
    assert ("length=1000" in about) == (name == "lra_text")
