"""The embedded Llama: its initial weights, its training, and the answers of the shipped model."""

import pytest
import torch
from omegaconf import OmegaConf

import bench
from bench.request import plugins
from methods.base import SequenceInfo
from methods.vanilla import Vanilla
from tasks.base import Data
from tests.conftest import ROOT
from tools.embedded import score
from tools.embedded.models.llama import Nearby
from tools.embedded.objectives.lines import at_places, attention_weights
from tools.embedded.rows import list_pairs
from tools.embedded.rows.line_pairs import asked_lines
from tools.embedded.rows.needle_pairs import HIDDEN, KINDS, NIAH, asked

SHIPPED = ROOT / "bench/models/embedded/llama"
TOKENS, QUESTIONS = 150, 3


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
        {"pair": {"tokens": TOKENS, "questions": QUESTIONS}, "rows": 2, "single": 0.0}
    )
    return next(objective.batches(stage, 0))[1]


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
    places = torch.cat((batch.answers[:, :2], batch.reads))
    some, looks = at_places(last, hidden, places)
    whole = last(hidden, SequenceInfo(causal=True))
    assert torch.allclose(some, whole[places[:, 0], places[:, 1]], atol=1e-5)
    assert torch.allclose(looks.sum(-1), torch.ones(()), atol=1e-5)


def test_a_batch_knows_what_each_answer_is_copied_from(fresh, batch):
    row, token, wanted, source = batch.answers.unbind(1)
    end, *closing = fresh.tokenizer.convert_tokens_to_ids(["</s>", ">", "."])
    copied = wanted != end
    assert torch.equal(batch.ids[row, source][copied], wanted[copied])
    assert set(batch.ids[row, source][~copied].tolist()) == {*closing}
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


def test_lines_are_asked_of_the_training_split():
    first, *more = asked_lines(0, 0, 6, QUESTIONS)
    assert len(more) == QUESTIONS - 1 and len({a.text for a in more}) == len(more)
    for question in (first, *more):
        assert first.text[question.source :].startswith(f"{question.answer}>")
    task = plugins.build(plugins.conf("task", "longeval_lines"))
    text = task.make("train", 0, 2048, 0)[0]["prompt"]
    assert first.text.partition("line ")[0] == text.partition("line ")[0]


@pytest.mark.parametrize("kind", NIAH)
def test_needles_are_asked_for_as_ruler_does(kind):
    first, *more = asked(KINDS.index(kind), 0, TOKENS, QUESTIONS)
    assert len(more) == QUESTIONS - 1
    for question in (first, *more):
        needle = first.text[: question.source].rpartition("One of the special magic ")[2]
        key = question.text.rpartition(" for ")[2].partition(" ")[0]
        assert needle.split()[1:] == ["for", key, "is:"]
        assert first.text[question.source :].startswith(f"{question.answer}.")
    task = plugins.build(plugins.conf("task", f"ruler_{kind}"))
    row = task.load(Data(split="train"), 1, 1024, 0).rows[0]
    asking = (row.query + row.ending).split(" for ")
    assert [part.partition(" ")[2] for part in first.text.split(" for ")[-2:]] == [
        part.partition(" ")[2] for part in asking[1:]
    ]


@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_numbers_are_asked_for_as_infinitebench_does(kind):
    (question,) = asked(KINDS.index(kind), 0, TOKENS, QUESTIONS)
    task = plugins.build(plugins.conf("task", f"infinitebench_{kind.removesuffix('_string')}"))
    row = task.load(Data(split="train"), 1, 1024, 0).rows[0]
    assert question.text.endswith(row.query + row.ending)
    assert question.text[question.source :].startswith(f"{question.answer}. Remember it.")


@pytest.mark.parametrize("kind", list_pairs.LISTS)
def test_lists_are_asked_for_as_ruler_does(kind):
    first, *more = asked(0, 0, 1000, 1, [kind])
    task = plugins.build(plugins.conf("task", f"ruler_{kind}"))
    row = task.load(Data(split="train"), 1, 1024, 0).rows[0]
    for asking in (row.query, row.ending):
        assert asking.split(" for ")[0].split(" value ")[0] in first.text
    for question in (first, *more):
        assert first.text[question.source :].startswith(question.answer)
    assert [bool(question.text) for question in more] == [False] * len(more)
    *open_, last = [question.closing for question in (first, *more)]
    assert last is None and {*open_} <= {"", list_pairs.MORE}


def test_an_answer_of_several_parts_ends_once(objective):
    questions = asked(0, 0, 300, 1, ["niah_multiquery"])
    batch = objective.encode([questions])
    tokenizer = objective.tokenizer
    said = tokenizer.decode(batch.answers[:, 2])
    assert said.count("</s>") == 1 and said.endswith("</s>") and said.count(",") == 3
    first = batch.answers[0, 1].item()
    assert tokenizer.decode(batch.ids[0, first + 1 :]) == said


@pytest.mark.parametrize("method", ["vanilla", "iceformer"])
def test_the_shipped_model_finds_lines(method, tmp_path):
    words = f"model=embedded-llama task=longeval_lines task.lines=60 method={method} n=8 threads=1"
    figures = score.figures(bench.compose(*words.split(), "task.max_new_tokens=16"), tmp_path)
    assert figures["last_number_match"] >= 85


def test_the_shipped_model_finds_needles(tmp_path):
    words = "model=embedded-llama task=ruler_niah_multikey_2 method=vanilla length=1024 n=8"
    figures = score.figures(bench.compose(*words.split(), "threads=1"), tmp_path)
    assert figures["string_match_all"] >= 85


def test_the_shipped_model_is_small_and_says_what_it_is():
    sizes = {path.name: path.stat().st_size for path in SHIPPED.iterdir()}
    assert sizes["model.safetensors"] <= 8 << 20 and sizes["tokenizer.json"] <= 200_000
    card = OmegaConf.load(SHIPPED / "card.yaml")
    assert {"recipe", "data", "data_sha256", "seed", "minutes", "scores"} <= set(card)
    # Digits that repeat are hard to copy, and what is asked of the last three is found in part.
    partly = {"infinitebench_number", "ruler_niah_multivalue", "ruler_niah_multikey_3", "ruler_fwe"}
    for task in card.scores.keys() - partly:
        for size, figures in card.scores[task].vanilla.items():
            longest = size == 8192 and task in ("ruler_niah_multikey_2", "ruler_niah_multiquery")
            assert next(iter(figures.values())) >= (80 if longest else 90), (task, size)
