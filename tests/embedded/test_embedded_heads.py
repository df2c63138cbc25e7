"""The embedded RoBERTa: its initial weights, training and resuming, and the shipped weights."""

import re

import pytest
import torch
from omegaconf import OmegaConf

import bench
from bench.models.base import Spec
from bench.models.heads import RobertaChoice, RobertaSpan
from bench.request import plugins
from bench.train import checkpoint
from methods.vanilla import Vanilla
from tools.embedded import score, train
from tools.embedded.models import distance
from tools.embedded.objectives.heads import Heads
from tools.embedded.rows import marked

RECIPE = OmegaConf.load(plugins.ROOT / "tools/embedded/recipes/roberta.yaml")
MAKE = "tools.embedded.rows.marked:"
ROWS = [
    {"name": "span", "make": f"{MAKE}paragraphs", "options": {"tokens": 60, "facts": 2}},
    {"name": "choice", "make": f"{MAKE}choices", "options": {"tokens": 60, "facts": 4}},
]


@pytest.fixture(scope="module")
def small(new_model):
    """The recipe with a short table of positions, two layers and two stages of a few steps, and
    the objective with its new model."""
    stage = {"batch_tokens": 400, "lr": 1e-3, "until": 2.0, "minutes": 0.01, "guidance": 0.0}
    config = {"num_hidden_layers": 2}
    new = {"positions": 256, "draws": 256, "config": config, "matches": [RECIPE.new.matches[0]]}
    stages = [{**stage, "rows": ROWS}, {**stage, "rows": ROWS[:1]}]
    return new_model("roberta", {"new": new, "stages": stages})


def test_training_resumes_and_ends_with_a_checkpoint_that_both_heads_load(
    small, tmp_path, monkeypatch
):
    recipe, _ = small
    out, path = tmp_path / "model", tmp_path / "small.yaml"
    OmegaConf.save({**recipe, "out": str(out)}, path)
    loss, steps = Heads.loss, []

    def stopped(objective, batch, guidance):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return loss(objective, batch, guidance)

    with monkeypatch.context() as patched:
        patched.setattr(train, "SAVE_SECONDS", 0)
        patched.setattr(Heads, "loss", stopped)
        with pytest.raises(KeyboardInterrupt):
            train.main(str(path))
    model = Heads(recipe, out).model
    trained = [w for name, w in model.named_parameters() if not re.search(recipe.frozen, name)]
    optimizer = torch.optim.AdamW(trained)
    state, _ = checkpoint.restore_state(out / train.CHECKPOINT, model, optimizer, None)
    assert state["step"] == 3 and optimizer.state

    train.main(str(path))
    assert not (out / train.CHECKPOINT).exists()
    card = OmegaConf.load(out / "card.yaml")
    assert card.seed == 0 and len(card.data_sha256) == 64
    for kind in (RobertaSpan, RobertaChoice):
        assert not kind.load(Spec("small", out), Vanilla(), "float32", "cpu").lacks


def test_guidance_asks_for_the_looks_of_a_row(small):
    _, objective = small
    batch = objective.encode([marked.choices(0, 0, 80, 4)] * 2)
    last = batch.looks[batch.looks[:, 1] == marked.COMPARE]
    assert (batch.ids[last[:, 0], last[:, 2]] == objective.marks["[ent]"]).all()
    unguided, _ = objective.loss(batch, 0.0)
    guided, _ = objective.loss(batch, 1.0)
    assert guided > unguided


def test_a_head_can_be_set_to_find_and_bring_one_token(small):
    layer, waves = small[1].span.layers[0], 16
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(4, 60, 128, generator=draw)
    states[:, 7, 20] = 9.0
    wanted = torch.randn(4, 3, generator=draw)
    states[:, 7, :3] = wanted
    with torch.no_grad():
        distance.look(layer.block, 5, states[:, 7], states.flatten(0, 1))
        to = torch.linalg.qr(torch.randn(128, 3, generator=draw)).Q
        before = layer.block.attention.self.value.weight[:80].clone()
        distance.carry(layer.block, 5, torch.eye(3, 128), torch.zeros(3), to)
    shares = layer.scores(states, None, states, None).softmax(-1)[:, 5]
    assert shares[..., 7].min() > 0.99
    attention = layer.block.attention
    assert torch.equal(attention.self.value.weight[:80], before)
    brought = attention.self.value(states[:, 7])[:, 80:96] @ attention.output.dense.weight.T[80:96]
    assert torch.allclose(brought @ to, wanted, atol=1e-5)
    assert torch.equal(distance.stillest(states[0], waves)[:waves], torch.zeros(waves, 1))


@pytest.mark.parametrize(
    ("task", "metric", "least"),
    [
        ("task=hotpotqa task.form=roberta", "squad_em_f1", 50),
        ("task=quality task.query=entities", "exact_match", 40),
    ],
)
def test_the_shipped_model_answers_above_chance(task, metric, least, tmp_path):
    words = f"model=embedded-roberta {task} length=1024 n=16 method=vanilla threads=1"
    assert score.figures(bench.compose(*words.split()), tmp_path)[metric] >= least
