"""`prompt=auto|plain|chat`: the form that a cell takes, its key and its answers."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import bench
from bench.compare import verify
from bench.errors import RequestError
from bench.execution import arms
from bench.request.cell import Cell
from bench.request.compose import command_of
from tests.tasks.test_decoder_prompts import BOS, END, TEMPLATE, tokenizer

WORDS = ("method=vanilla", "task=quality", "length=1024", "n=2", "threads=1")


def checkpoint(folder: Path, template: str | None) -> Path:
    """A tiny decoder, whose turns end with END, with or without a chat template."""
    tokens = tokenizer(bos=template is None, template=template)
    tokens.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, max_position_embeddings=4096,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ends = [tokens.eos_token_id, tokens.convert_tokens_to_ids(END)]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[0])
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoders")
    return {
        name: checkpoint(folder / name, template)
        for name, template in (("instructed", TEMPLATE), ("base", None))
    }


def cell_of(models, name: str, *words: str) -> Cell:
    return bench.compose(f"model={models[name]}", *WORDS, *words)


def test_a_model_with_a_chat_template_is_asked_in_a_chat(models):
    auto, plain, chat = (
        cell_of(models, "instructed", *more) for more in ([], ["prompt=plain"], ["prompt=chat"])
    )
    assert auto == chat and (auto.prompt, plain.prompt) == ("chat", "plain")
    assert [cell.columns["prompt"] for cell in (auto, plain)] == ["chat", "plain"]
    assert auto.key != plain.key and auto.prediction_key != plain.prediction_key
    assert auto.baseline().prompt == "chat" and auto.build_task().decoder == "chat"
    assert Cell.from_json(auto.to_json()) == auto
    assert "prompt=" not in command_of(auto) and "prompt=plain" in command_of(plain)
    assert [verify._request(json.loads(cell.to_json()), None)["prompt"]
            for cell in (auto, plain)] == ["chat", "plain"]  # fmt: skip
    without = cell_of(models, "instructed", "task=longeval_lines", "task.template=vicuna")
    assert without.prompt == "plain"


def test_one_without_it_is_asked_plainly_under_the_same_key(models):
    auto, plain = (cell_of(models, "base", *more) for more in ([], ["prompt=plain"]))
    assert auto == plain and auto.prompt is None and "prompt" not in auto._content()
    assert auto.columns["prompt"] == "plain" and auto.build_task().decoder == "plain"
    assert "prompt=" not in command_of(auto)


def test_an_encoder_has_no_form_and_no_prompt_of_a_decoder_in_its_key():
    cells = [bench.compose(*WORDS, "model=embedded", *more) for more in ([], ["prompt=plain"])]
    assert cells[0] == cells[1] and cells[0].columns["prompt"] is None
    assert cells[0].build_task().decoder is None
    assert not {"prompt", "decoder_prompt"} & {*cells[0]._content(), *cells[0]._content()["task"]}


@pytest.mark.parametrize(("model", "task", "message"), [
    ("base", "quality", "prompt=chat: model base has no chat template.*prompt=plain takes"),
    ("instructed", "lra_listops", "lra_listops encodes its rows by itself"),
])  # fmt: skip
def test_a_chat_that_cannot_be_is_one_line(models, model, task, message):
    with pytest.raises(RequestError, match=message) as found:
        cell_of(models, model, f"task={task}", "prompt=chat")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["instructed", "base"])
@pytest.mark.parametrize("task", ["quality", "ruler_niah_single_2"])
def test_vanilla_answers_as_transformers_generates_from_the_same_ids(models, name, task):
    cell = cell_of(models, name, f"task={task}", "dtype=float32")
    family = arms.load(cell, arms.method_of(cell))
    for encoded in arms.inputs(cell, cell.build_task(), family.tokenizer).encoded:
        ids, sequence = arms.collate([encoded], "cpu")
        text = family.tokenizer.decode(ids[0])
        assert text.startswith(BOS) is (name == "base")
        with torch.inference_mode():
            expected = family.model.generate(ids, max_new_tokens=24, do_sample=False)
            answer = family.generate(ids, sequence, 24)
        new = expected[0, ids.shape[1] :]
        assert answer == [family.tokenizer.decode(new, skip_special_tokens=True)]


def test_a_decoder_stops_generating_after_a_stop_string(models):
    cell = cell_of(models, "base")
    family = arms.load(cell, arms.method_of(cell))
    inputs = arms.inputs(cell, cell.build_task(), family.tokenizer)
    ids, sequence = arms.collate(inputs.encoded, "cpu")
    whole = family.generate_ids(ids, sequence, 24)
    texts = family.tokenizer.batch_decode(whole[:, :6])
    family.is_over = lambda text: any(text.startswith(one) for one in texts)
    stopped = family.generate_ids(ids, sequence, 24)
    assert stopped.shape[1] == 8 and torch.equal(stopped, whole[:, :8])
    family.is_over = lambda text: text.startswith(texts[0]) and texts[0] != texts[1]
    assert torch.equal(family.generate_ids(ids, sequence, 24), whole)


def test_answers_end_with_the_tokenizer_s_last_token_where_the_model_names_none(tmp_path):
    folder = checkpoint(tmp_path / "model", TEMPLATE)
    (folder / "generation_config.json").write_text('{"pad_token_id": 0}')
    cell = bench.compose(f"model={folder}", *WORDS)
    family = arms.load(cell, arms.method_of(cell))
    assert family.model.generation_config.eos_token_id == family.tokenizer.eos_token_id
