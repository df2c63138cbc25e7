"""RoBERTa's heads for choices and spans, from the formats in tasks/formats.py to predictions."""

import pytest
import torch
from transformers import AutoTokenizer, RobertaConfig, RobertaForSequenceClassification

import bench
from bench.models.auto import headed
from bench.models.base import Spec
from bench.models.heads import RobertaChoice, RobertaSpan
from bench.request import plugins
from bench.rows.store import Predictions
from methods.base import SequenceInfo
from methods.vanilla import Vanilla

ENT = 3
EMBEDDED = plugins.ROOT / "bench/models/embedded/t5"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 130, "pad_token_id": 1,
}  # fmt: skip


def checkpoint(folder, kind):
    """A small RoBERTa with the embedded tokenizer and without any marks."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    kind(RobertaConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(folder, kind):
    """The same with the marks as tokens of its own, as after training."""
    checkpoint(folder, kind.architecture)
    marks = ("[question]", "[/question]", "[ent]", "[/ent]", "[support]", "[cls]", "[qs]", "[qe]",
             "[te]", "[ts]", "[ss]")  # fmt: skip
    family = kind.load(Spec("x", folder, marks=marks), Vanilla(), "float32", "cpu")
    family.model.save_pretrained(folder)
    family.tokenizer.save_pretrained(folder)
    return folder


def learn(family, ids, sequence, target, steps=60):
    optimizer = torch.optim.Adam(family.model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = family.loss(ids, sequence, target)
        loss.backward()
        optimizer.step()
    return loss.item()


# --- choices ----------------------------------------------------------------------------------


def test_choices_are_scored_where_they_begin():
    family = RobertaChoice.tiny(Vanilla())
    # Three choices, and two with padding behind them, whose id is a mark's.
    ids = torch.tensor([[9, ENT, 5, ENT, 6, ENT, 7, 8], [9, ENT, 5, ENT, 6, 8, ENT, ENT]])
    valid = torch.tensor([[True] * 8, [True] * 6 + [False] * 2])
    logits = family.logits(ids, SequenceInfo(valid=valid), torch.zeros(2, 1, dtype=torch.long))
    assert logits.shape == (2, 1, 3) and logits[1, 0, 2] == torch.finfo(torch.float32).min
    hidden = family.encode(ids[1:, :6], SequenceInfo())
    alone = family.model.heads["choice"](hidden[0, [1, 3]])[:, 0]
    torch.testing.assert_close(logits[1, 0, :2], alone, rtol=1e-4, atol=1e-5)
    assert set(family.generate(ids, SequenceInfo(valid=valid), 9)) <= {"0", "1", "2"}
    with pytest.raises(ValueError, match=r"no \[ent\]"):
        family.classify(ids[:, 4:5], SequenceInfo())


# --- spans ------------------------------------------------------------------------------------


def test_a_span_is_learnt_and_begins_behind_the_question():
    family = RobertaSpan.tiny(Vanilla())
    title, sentence = family.marks["[ts]"], family.marks["[ss]"]
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(8, 64, (4, 24), generator=draw)
    ids[:, 6], ids[:, 9], ids[:, 16] = title, sentence, sentence
    vip = torch.zeros_like(ids, dtype=torch.bool)
    vip[:, :6] = True
    sequence = SequenceInfo(vip=vip)
    for kind, first, last in family.generate_ids(ids, sequence, 3).tolist():
        assert 0 <= kind < 3 and 6 < first <= last < first + 3
        assert {first, last}.isdisjoint((9, 16))
    target = torch.full((4, 27), -100)
    target[:, 0] = torch.tensor([0, 1, 2, 2])
    target[2:, 1:3] = torch.tensor([[10, 12], [17, 17]])
    target[:, 3 + 6], target[:, 3 + 9], target[:, 3 + 16] = 1, 0, 1
    assert learn(family, ids, sequence, target) < 0.2
    found = family.generate_ids(ids, sequence, 3)
    assert found[:, 0].tolist() == [0, 1, 2, 2] and found[2:, 1:].tolist() == [[10, 12], [17, 17]]
    hidden = family.encode(ids, sequence)
    needed = family.model.heads["sentence"](hidden)[:, [9, 16], 0] > 0
    assert needed.tolist() == [[False, True]] * 4
    logits = family.logits(ids, sequence, target)
    assert logits.shape == (4, 2, 24) and (logits[:, :, :6] == torch.finfo(torch.float32).min).all()


def test_spans_of_padded_rows_are_those_of_the_rows_alone():
    family = RobertaSpan.tiny(Vanilla())
    ids = torch.randint(8, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[1, 11:] = False
    together = family.generate_ids(ids, SequenceInfo(valid=valid), 5)
    alone = family.generate_ids(ids[1:, :11], SequenceInfo(), 5)
    assert together[1].tolist() == alone[0].tolist()


# --- loading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RobertaChoice, RobertaSpan])
def test_marks_become_tokens_and_an_untrained_head_answers_nothing(tmp_path, kind):
    folder = checkpoint(tmp_path, RobertaForSequenceClassification)
    plain = AutoTokenizer.from_pretrained(folder)
    spec = Spec("x", folder, marks=("[extra]",))
    family = kind.load(spec, Vanilla(), "float32", "cpu")
    assert set(family.marks) == {*kind.reads, "[extra]"}
    assert min(family.marks.values()) == len(plain)
    assert family.model.get_input_embeddings().num_embeddings == len(family.tokenizer)
    assert family.tokenizer("a [extra]b", add_special_tokens=False).input_ids.count(
        family.marks["[extra]"]
    ) == 1  # fmt: skip
    again = kind.load(spec, Vanilla(), "float32", "cpu").model.state_dict()
    assert all(torch.equal(w, again[name]) for name, w in family.model.state_dict().items())
    with pytest.raises(ValueError, match="no trained head"):
        family.generate(torch.tensor([[5, min(family.marks.values()), 6]]), SequenceInfo(), 1)


def test_the_task_chooses_the_head():
    plain = "bench.models.bert:RobertaFamily"
    assert headed(plain, "class") == plain
    for answers, kind in (("choice", RobertaChoice), ("span", RobertaSpan)):
        assert plugins.load(headed(plain, answers)) is kind and kind.answers == answers
    assert headed("bench.models.t5:T5Family", "span") == "bench.models.t5:T5Family"


# --- whole runs -------------------------------------------------------------------------------

RUNS = {"wikihop": ("form=roberta", RobertaChoice), "hotpotqa": ("form=roberta", RobertaSpan)}


@pytest.mark.parametrize("name", RUNS)
def test_predictions_are_texts(tmp_path, name):
    how, kind = RUNS[name]
    folder = trained(tmp_path / "model", kind)
    cell = bench.compose(
        f"task={name}", f"task.{how}", f"model={folder}", "method=vanilla", "length=512", "n=3",
        "batch=2", "measure=quality", "threads=1",
    )  # fmt: skip
    row = bench.run(cell, tmp_path / "rows")
    assert row["status"] == "ok", row["status_detail"]
    said = Predictions(tmp_path / "rows" / "predictions", cell.prediction_key).done()
    loaded = cell.rows()
    assert len(said) == 3
    for one in loaded.rows:
        prediction = said[one.id]["prediction"]
        if name == "hotpotqa":
            assert prediction in ("yes", "no") or "[ss]" not in prediction
        else:
            assert prediction in [c.removesuffix("[/ent]") for c in one.query.split("[ent]")[1:]]
