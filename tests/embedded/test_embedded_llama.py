"""The embedded Llama: what it begins as, how it is trained, and what the shipped one answers."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf

import bench
from bench.request import plugins
from methods.base import SequenceInfo
from methods.vanilla import Vanilla
from tests.conftest import ROOT
from tools.embedded import score
from tools.embedded.models.llama import Nearby, build_tokenizer, looking_back
from tools.embedded.objectives.lines import at_answers, attention_weights
from tools.embedded.rows.line_pairs import asked_lines, vocabulary

SHIPPED = ROOT / "bench/models/embedded/llama"
LINES, QUESTIONS = 6, 3


@pytest.fixture(scope="module")
def made(new_model):
    return new_model("llama")


@pytest.fixture
def objective(made):
    return made[1]


@pytest.fixture
def fresh(objective):
    return objective.family


@pytest.fixture
def batch(objective):
    stage = OmegaConf.create(
        {"pair": {"lines": LINES, "questions": QUESTIONS}, "rows": 2, "single": 0.0}
    )
    return next(objective.batches(stage, 0))[1]


def test_heads_look_back_by_the_distances_they_are_fitted_to():
    frequencies = 1e6 ** -(torch.arange(16) / 16)
    queries = looking_back(torch.tensor([[1, 1], [4, 9]]), frequencies, 1024, steps=400)
    first, second = queries.unflatten(1, (2, 16)).unbind(1)
    scores = []
    for distance in range(1024):
        c, s = (distance * frequencies).cos(), (distance * frequencies).sin()
        # As transformers turns a query whose key (ones, then zeros) stands at place 0.
        scores.append((first * c - second * s).sum(1))
    looks = torch.stack(scores, 1).softmax(1)
    assert looks[0, 1] > 0.98
    assert looks[1, 4:10].sum() > 0.9 and looks[1, 4:10].min() > 0.1


def test_a_new_model_looks_where_it_was_laid_out_to(made, fresh, batch):
    new = made[0].new
    hidden = fresh.model.model.embed_tokens(batch.ids[:1])
    token = batch.ids.shape[1] - 8
    looks = attention_weights(fresh.layers[0], hidden, torch.tensor([token]))[:, 0]
    for head in range(new.shifts):
        assert looks[head, token - head - 1] > 0.98
    low, high = new.window
    assert looks[new.shifts, token - high : token - low + 1].sum() > 0.9


def test_nearby_is_vanilla_where_heads_look_nearby(fresh, batch):
    hidden = fresh.model.model.embed_tokens(batch.ids)
    exact = fresh.layers[0](hidden, SequenceInfo(causal=True))
    fresh.method = Nearby(64)
    near = fresh.layers[0](hidden, SequenceInfo(causal=True))
    fresh.method = Vanilla()
    assert batch.ids.shape[1] > 3 * 64
    assert torch.allclose(near, exact, atol=0.02 * exact.detach().abs().max().item())


def test_the_last_layer_on_the_answers_alone_is_the_layer(fresh, batch):
    first, last = fresh.layers
    hidden = first(fresh.model.model.embed_tokens(batch.ids), SequenceInfo(causal=True))
    row, token, *_ = batch.answers.unbind(1)
    some, looks = at_answers(last, hidden, batch)
    whole = last(hidden, SequenceInfo(causal=True))
    assert torch.allclose(some, whole[row, token], atol=1e-5)
    assert torch.allclose(looks.sum(-1), torch.ones(()), atol=1e-5)


def test_a_batch_knows_what_each_answer_is_copied_from(fresh, batch):
    row, token, wanted, source = batch.answers.unbind(1)
    end, close = fresh.tokenizer.convert_tokens_to_ids(["</s>", ">"])
    copied = wanted != end
    assert torch.equal(batch.ids[row, source][copied], wanted[copied])
    assert set(batch.ids[row, source][~copied].tolist()) == {close}
    assert torch.equal(batch.ids[row, token + 1], wanted)
    assert int((~copied).sum()) == 2 * QUESTIONS


def test_guidance_and_answers_teach_a_new_model(objective, fresh, batch):
    before, _ = objective.loss(batch, 1.0)
    before.backward()
    with torch.no_grad():
        for weight in fresh.model.parameters():
            weight -= 1e-3 * weight.grad.sign()
    after, _ = objective.loss(batch, 1.0)
    with torch.no_grad():
        for weight in fresh.model.parameters():
            weight += 1e-3 * weight.grad.sign()
    fresh.model.zero_grad()
    assert after < before


def test_questions_are_asked_of_the_training_split():
    first, *more = asked_lines(0, 0, LINES, QUESTIONS)
    assert len(more) == QUESTIONS - 1 and len({a.text for a in more}) == len(more)
    for asked in (first, *more):
        assert first.text[asked.source :].startswith(f"{asked.answer}>")
    task = plugins.build(plugins.conf("task", "longeval_lines"))
    text = task.make("train", 0, 2048, 0)[0]["prompt"]
    assert first.text.partition("line ")[0] == text.partition("line ")[0]


def test_known_words_are_tokens_and_other_text_comes_back():
    tokenizer = build_tokenizer([word for words in vocabulary() for word in words])
    line = tokenizer("line silver-key: REGISTER_CONTENT is <4071>\n", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(line.input_ids) == [
        *("line", "▁silver", "-", "key", ":", "▁REGISTER_CONTENT", "▁is", "▁<"),
        *("4", "0", "7", "1", ">", "\n"),
    ]
    text = "USER: grotesque-patrimony — Zürich, 漢字?\n\n  42"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


@pytest.mark.parametrize("method", ["vanilla", "iceformer"])
def test_the_shipped_model_finds_lines(method, tmp_path):
    words = f"model=embedded-llama task=longeval_lines task.lines=60 method={method} n=8 threads=1"
    figures = score.figures(bench.compose(*words.split(), "task.max_new_tokens=16"), tmp_path)
    assert figures["last_number_match"] >= 85


def test_the_shipped_model_is_small_and_says_what_it_is():
    sizes = {path.name: path.stat().st_size for path in SHIPPED.iterdir()}
    assert sizes["model.safetensors"] <= 8 << 20 and sizes["tokenizer.json"] <= 200_000
    card = OmegaConf.load(SHIPPED / "card.yaml")
    assert {"recipe", "data", "data_sha256", "seed", "minutes", "scores"} <= set(card)
    trained = {int(lines): figures for lines, figures in card.scores.vanilla.items()}[270]
    assert trained.accuracy >= 0.9 and trained.n >= 50 and len(trained.entropy_by_layer) == 2
