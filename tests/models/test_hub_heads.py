"""transformers' own heads: any checkpoint answers the tasks for which it was trained, and a
checkpoint without a head is measured without answers."""

from dataclasses import replace

import pytest
import torch
import transformers

from bench.errors import RequestError
from bench.execution import arms, cell_run, stages
from bench.execution.runner import identity
from bench.models import auto, hub_heads
from bench.models.base import Spec
from bench.models.bert import BertFamily
from bench.request import plugins
from bench.request.cell import Cell
from bench.request.compose import compose
from bench.rows.store import Predictions
from bench.status import Status
from bench.sweep.plan import plan
from methods.base import SequenceInfo
from methods.vanilla import Vanilla
from tasks.loading import formats

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 130, "vocab_size": 300, "pad_token_id": 1,
}  # fmt: skip


def checkpoint(folder, kind, **more):
    torch.manual_seed(0)
    kind(kind.config_class(**{**SIZES, **more})).save_pretrained(folder)
    return folder


class Special:
    """The part of a tokenizer that makes the heads' input."""

    cls_token_id, sep_token_id = 5, 6

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("kind", "family", "separators"),
    [
        (transformers.BertForQuestionAnswering, hub_heads.BertQuestionAnswering, [6]),
        (transformers.RobertaForQuestionAnswering, hub_heads.RobertaQuestionAnswering, [6, 6]),
    ],
)
def test_spans_are_those_of_transformers(tmp_path, kind, family, separators):
    model = kind.from_pretrained(checkpoint(tmp_path, kind)).eval()
    ours = family(kind.from_pretrained(tmp_path), Special(), Vanilla())
    question, context = [20, 21, 22], [30, 31, 32, 33, 34]
    ids = torch.tensor([question + context, question[:2] + context + [0]])
    vip = torch.tensor([[True] * 3 + [False] * 5, [True] * 2 + [False] * 6])
    valid = torch.tensor([[True] * 8, [True] * 7 + [False]])
    scores = ours.classify(ids, SequenceInfo(valid=valid, vip=vip)).view(2, 2, 8)
    for row, asked in enumerate((question, question[:2])):
        first, second = [5, *asked, *separators], [*context, 6]
        types = [0] * len(first) + [1] * len(second) if separators == [6] else None
        out = model(torch.tensor([first + second]), token_type_ids=types and torch.tensor([types]))
        begin = len(first)
        for at, logits in enumerate((out.start_logits, out.end_logits)):
            expected = logits[0, begin : begin + 5]
            torch.testing.assert_close(scores[row, at, len(asked) : len(asked) + 5], expected)
        assert (scores[row, :, : len(asked)] == torch.finfo(torch.float32).min).all()
    first, last = ours.generate_ids(ids, SequenceInfo(valid=valid, vip=vip), 2)[1].tolist()
    assert 2 <= first <= last <= first + 1 and last < 7


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        (transformers.BertForMultipleChoice, hub_heads.BertMultipleChoice),
        (transformers.RobertaForMultipleChoice, hub_heads.RobertaMultipleChoice),
    ],
)
def test_choices_are_scored_as_by_transformers(tmp_path, kind, family):
    model = kind.from_pretrained(checkpoint(tmp_path, kind)).eval()
    ours = family(kind.from_pretrained(tmp_path), Special(), Vanilla())
    ours.marks = {mark: 100 + at for at, mark in enumerate(ours.reads)}
    choices, context = [[40], [41, 42], [43]], [30, 31, 32]
    query = [100, 20, 21, 101, *(token for one in choices for token in (102, *one, 103))]
    ids = torch.tensor([query + context])
    vip = torch.tensor([[True] * len(query) + [False] * 3])
    scores = ours.classify(ids, SequenceInfo(vip=vip))
    for at, one in enumerate(choices):
        first, second = [5, *context, 6], [20, 21, *one, 6]
        types = torch.tensor([[[0] * len(first) + [1] * len(second)]])
        has_types = kind is transformers.BertForMultipleChoice
        out = model(
            torch.tensor([[first + second]]), **({"token_type_ids": types} if has_types else {})
        )
        torch.testing.assert_close(scores[0, at], out.logits[0, 0], rtol=1e-4, atol=1e-5)


def test_a_request_without_a_task_gets_one_that_the_model_answers(tmp_path):
    speed_alone = ("narrativeqa", "query", "paragraph", "speed")
    expected = {
        transformers.RobertaForQuestionAnswering: ("hotpotqa", "form", "squad", "quick"),
        transformers.BertForMultipleChoice: ("quality", "query", "entities", "quick"),
        transformers.BertModel: speed_alone,
        transformers.BertForSequenceClassification: speed_alone,
    }
    for kind, asked in expected.items():
        model = checkpoint(tmp_path / kind.__name__, kind)
        cell = Cell.of(compose([f"model={model}", "n=1", "length=512"]))
        task, name, value, measure = asked
        assert (cell.task["name"], cell.task[name], cell.measure) == (task, value, measure)
    own = compose(["model=embedded-roberta"])["task"]
    assert (own["name"], own["form"]) == ("hotpotqa", "roberta")
    assert compose(["model=embedded"])["task"]["name"] == "narrativeqa"


def test_a_task_that_the_model_can_not_answer_is_refused_before_anything_runs(tmp_path):
    model = checkpoint(tmp_path, transformers.BertModel)
    words = [f"model={model}", "task=lra_text_easy", "length=64", "n=1"]
    line = "asks for a class, and model .* has no trained head for that"
    with pytest.raises(RequestError, match=line):
        Cell.of(compose(words))
    with pytest.raises(RequestError, match=line):
        plan([*words, "results=nowhere"])
    cell = Cell.of(compose([*words, "measure=speed"]))
    assert cell.model["untrained"] == "class" and Cell.from_json(cell.to_json()) == cell


def test_positions_past_the_table_are_named_in_the_row(tmp_path):
    for kind, learned in ((transformers.BertModel, 130), (transformers.RobertaForMaskedLM, 128)):
        model = checkpoint(tmp_path / kind.__name__, kind)
        for length, expected in ((learned, None), (learned + 1, learned)):
            words = [f"model={model}", f"length={length + 128}", "n=1", "measure=speed"]
            cell = replace(Cell.of(compose(words)), length=length)
            assert identity(cell).get("positions_learned") == expected
    assert auto.learned_positions(plugins.ROOT / "bench/models/embedded/t5") is None
    config = plugins.conf("model", "random-bert-base")["config"]
    assert auto.learned_positions(plugins.ROOT, config) == 512


def test_an_untrained_head_has_no_first_choice(tmp_path):
    from bench.measure.latency import fidelity

    checkpoint(tmp_path, transformers.BertModel)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    family = BertFamily.load(Spec("x", tmp_path), Vanilla(), "float32", "cpu")
    ids = torch.randint(8, 64, (1, 16), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = fidelity(family, Vanilla(), (ids, SequenceInfo()))
    assert found["fid_rel_l2"] == 0 and "fid_top1_agree" not in found
    with pytest.raises(ValueError, match="this checkpoint has no trained head for a class"):
        family.generate(ids, SequenceInfo(), 1)


def test_a_weight_that_holds_nan_is_named(tiny_t5, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in tiny_t5.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    name = "encoder.block.1.layer.1.DenseReluDense.wo.weight"
    weights[name][0, 0] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    cell = Cell.of(compose([f"model={tmp_path}", "n=1", "length=256"]))
    with pytest.raises(RequestError, match=rf"weight {name} holds NaN \(1 of 2,048\)"):
        arms.load(cell, Vanilla())


ANSWERING = [transformers.RobertaForQuestionAnswering, transformers.BertForMultipleChoice]


@pytest.mark.parametrize("kind", ANSWERING)
def test_a_checkpoint_answers_the_task_that_it_is_given(kind, tiny_t5, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_t5)
    tokenizer.add_special_tokens({"cls_token": "<cls>", "sep_token": "<sep>"})
    tokenizer.save_pretrained(tmp_path)
    checkpoint(tmp_path, kind, vocab_size=len(tokenizer))
    cell = Cell.of(compose([f"model={tmp_path}", "method=vcc", "n=2", "batch=2", "length=512"]))
    rows = arms.rows_without_references(cell)
    assert stages.predicted(cell_run.CellRun(cell, tmp_path, 60), "quality").status == Status.OK
    stored = Predictions(tmp_path / "predictions", cell.prediction_key).done()
    for row in rows:
        answer = stored[row.id]["prediction"]
        if kind is transformers.BertForMultipleChoice:
            assert answer in formats.query_choices(row.query)
        else:
            ids = tokenizer(row.document).input_ids
            assert answer in tokenizer.decode(ids, skip_special_tokens=True)
