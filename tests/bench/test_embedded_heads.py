"""The embedded RoBERTa: how it begins, that its trainer learns and goes on, what is shipped."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from bench import plugins
from bench.children import check_heads, curriculum, train_heads
from bench.models.base import Spec
from bench.models.embedded import distance
from bench.models.heads import RobertaChoice, RobertaSpan
from methods.vanilla import Vanilla
from tasks import marked
from tasks.base import Data

RECIPE = plugins.ROOT / "conf/embedded/roberta.yaml"
SHIPPED = plugins.ROOT / "bench/models/embedded/roberta"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The recipe with a short table of positions and two stages of a few steps."""
    recipe = OmegaConf.load(RECIPE)
    recipe.out = str(tmp_path_factory.mktemp("heads") / "model")
    recipe.new.update(positions=256, draws=256)
    recipe.new.config.update(num_hidden_layers=2)
    recipe.new.matches = recipe.new.matches[:1]
    rows = [
        {"name": "span", "make": "tasks.marked:paragraphs", "options": {"tokens": 60, "facts": 2}},
        {"name": "choice", "make": "tasks.marked:choices", "options": {"tokens": 60, "facts": 4}},
    ]
    stage = {"batch_tokens": 400, "lr": 1e-3, "until": 2.0, "minutes": 0.03, "guidance": 0.0}
    recipe.stages = [{**stage, "rows": rows}, {**stage, "rows": rows[:1]}]
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    OmegaConf.save(recipe, path)
    return path, recipe


def test_heads_of_positions_look_where_they_should(small):
    _, recipe = small
    plugins.load(recipe.new.target)(recipe.new, 0, Path(recipe.out))
    both = train_heads.load(Path(recipe.out), Vanilla(), list(recipe.marks))
    ids = torch.randint(3, 300, (1, 250), generator=torch.Generator().manual_seed(0))
    embeddings = both.model.roberta.embeddings(ids, position_ids=torch.arange(1, 251)[None])
    shares = both.span.layers[0].scores(embeddings, None, embeddings, None).softmax(-1)[0]
    for head, shift in enumerate(recipe.new.shifts):
        assert shares[head].diagonal(shift).min() > 0.9


def test_training_ends_with_a_checkpoint_that_both_heads_load(small):
    path, recipe = small
    train_heads.main(str(path))
    out = Path(recipe.out)
    assert not (out / "checkpoint.safetensors").exists()
    assert OmegaConf.load(out / "card.yaml").seed == 0
    for kind in (RobertaSpan, RobertaChoice):
        assert not kind.load(Spec("small", out), Vanilla(), "float32", "cpu").lacks


def test_training_goes_on_from_what_was_saved(small, monkeypatch):
    path, recipe = small
    monkeypatch.setattr(curriculum, "SAVE_SECONDS", 0)
    steps = []

    def stop(both, method, batch, guidance, measure=train_heads.Both.measure):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return measure(both, method, batch, guidance)

    with monkeypatch.context() as patched:
        patched.setattr(train_heads.Both, "measure", stop)
        with pytest.raises(KeyboardInterrupt):
            train_heads.main(str(path))
    out = Path(recipe.out)
    both = train_heads.load(out, Vanilla(), list(recipe.marks))
    optimizer = torch.optim.AdamW(both.model.parameters())
    with torch.no_grad():
        state = curriculum.restore(out / "checkpoint.safetensors", both.model, optimizer)
    assert state["step"] == 3
    (out / "checkpoint.safetensors").unlink()


def test_guidance_asks_for_the_looks_of_a_row(small):
    _, recipe = small
    both = train_heads.load(Path(recipe.out), Vanilla(), list(recipe.marks))
    batch = train_heads.encode([marked.choices(0, 0, 80, 4)] * 2, both.tokenizer)
    last = batch.looks[batch.looks[:, 1] == marked.COMPARE]
    assert (batch.ids[last[:, 0], last[:, 2]] == both.marks["[ent]"]).all()
    plain, _ = both.measure(Vanilla(), batch, 0.0)
    guided, _ = both.measure(Vanilla(), batch, 1.0)
    assert guided > plain


def test_a_head_can_be_set_to_find_and_bring_one_token(small):
    _, recipe = small
    plugins.load(recipe.new.target)(recipe.new, 0, Path(recipe.out))
    both = train_heads.load(Path(recipe.out), Vanilla(), list(recipe.marks))
    layer, waves = both.span.layers[0], 16
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


def test_the_shipped_model_compares_what_two_words_fetch():
    recipe = OmegaConf.load(RECIPE)
    both = train_heads.load(SHIPPED, Vanilla(), list(recipe.marks))
    rows = [marked.comparisons(10**6 + row, 1, 100, 3) for row in range(64)]
    with torch.no_grad():
        right = both.measure(Vanilla(), train_heads.encode(rows, both.tokenizer), 0.0)[1]
    assert right >= 0.7


@pytest.mark.parametrize(
    ("name", "form", "kind", "least"),
    [
        ("hotpotqa", {"form": "roberta"}, RobertaSpan, 0.5),
        ("quality", {"query": "entities"}, RobertaChoice, 0.4),
    ],
)
def test_the_shipped_model_answers_above_chance(name, form, kind, least):
    task = plugins.build({**plugins.conf("task", name), **form})
    spec = Spec("shipped", SHIPPED, marks=tuple(task.special_tokens))
    family = kind.load(spec, Vanilla(), "float32", "cpu")
    rows = task.load(Data(), 16, 1024, 0).rows
    given = check_heads.predict(family, task, rows, 1024)
    scores = task.score_each(given, [row.references for row in rows])
    assert sum(scores) / len(scores) / 100 >= least
