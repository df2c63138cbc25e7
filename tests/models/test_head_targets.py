"""What RoBERTa's heads learn: targets of encoded rows, and a model that overfits a few of them."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from bench.models.auto import headed
from bench.models.base import Spec
from bench.request import plugins
from bench.train.batches import BatchLoader
from methods.vanilla import Vanilla
from tasks.base import Data, DataError
from tests.conftest import ROOT

EMBEDDED = ROOT / "bench/models/embedded/t5"
ROBERTA = "bench.models.bert:RobertaFamily"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 514,
}  # fmt: skip
TINY = SIZES | {
    "model_type": "roberta", "vocab_size": 4200, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
FORMS = {
    "hotpotqa": {"form": "roberta"},
    "wikihop": {"form": "roberta"},
    "quality": {"query": "entities"},
}


def task(name: str, **given):
    return replace(plugins.build(plugins.conf("task", name)), **FORMS[name], **given)


def family(made, tokenizer_only: bool = False):
    if tokenizer_only:
        tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
        tokenizer.add_tokens(list(made.special_tokens), special_tokens=True)
        return tokenizer
    kind = plugins.load(headed(ROBERTA, made.answers))
    spec = Spec("x", EMBEDDED, TINY, 0, tuple(made.special_tokens))
    return kind.load(spec, Vanilla(), "float32", "cpu")


def hotpot(answer: str, **given):
    context = {
        "title": ["Oz", "Ur"],
        "sentences": [["Oz is a land.", " Ann lives in Ur."], ["Ur is far.", " Bob left Ur."]],
    }
    record = {"id": "h", "question": "Where does Ann live?", "answer": answer, "context": context}
    return task("hotpotqa").parse(record | given, "here", "train", 0)


def spelled(tokenizer, encoded, target) -> str:
    first, last = target[1:3]
    return tokenizer.decode(encoded.ids[first : last + 1]).strip()


def begun(tokenizer, encoded, target, value) -> list[str]:
    """The first letter behind each mark whose part is needed (1) or isn't (0)."""
    found = []
    for at, needed in enumerate(target[3:]):
        if needed == value:
            mark = tokenizer.convert_ids_to_tokens(encoded.ids[at])
            found.append(mark + tokenizer.decode(encoded.ids[at + 1 : at + 3]).strip()[:1])
    return found


# --- targets ----------------------------------------------------------------------------------


def test_a_span_is_taken_from_a_sentence_that_the_answer_rests_on():
    made = task("hotpotqa")
    tokenizer = family(made, tokenizer_only=True)
    facts = {"title": ["Oz", "Ur"], "sent_id": [1, 1]}
    for given in (facts, [["Oz", 1], ["Ur", 1]]):
        row = hotpot("Ur", supporting_facts=given)
        encoded = made.encode(row, tokenizer, 128)
        target = made.target(row, encoded, tokenizer)
        assert len(target) == 3 + len(encoded.ids) and target[0] == 2
        assert spelled(tokenizer, encoded, target) == "Ur"
        before = tokenizer.decode(encoded.ids[: target[1]])
        assert before.rstrip().endswith("lives in")
        assert begun(tokenizer, encoded, target, 1) == ["[ts]O", "[ss]A", "[ts]U", "[ss]B"]
        assert begun(tokenizer, encoded, target, 0) == ["[ss]O", "[ss]U"]


def test_without_facts_the_first_place_counts_and_no_mark_is_judged():
    made = task("hotpotqa")
    tokenizer = family(made, tokenizer_only=True)
    row = hotpot("Ur")
    encoded = made.encode(row, tokenizer, 128)
    target = made.target(row, encoded, tokenizer)
    assert spelled(tokenizer, encoded, target) == "Ur" and set(target[3:]) == {-100}
    assert tokenizer.decode(encoded.ids[: target[1]]).rstrip().endswith("in")


@pytest.mark.parametrize(("answer", "kind"), [("no", 0), ("Yes", 1), ("Rome", 2)])
def test_an_answer_without_a_place_has_no_ends(answer, kind):
    made = task("hotpotqa")
    tokenizer = family(made, tokenizer_only=True)
    row = hotpot(answer)
    target = made.target(row, made.encode(row, tokenizer, 128), tokenizer)
    assert target[:3] == [kind, -100, -100]


@pytest.mark.parametrize("side", ["left", "right"])
def test_spans_of_cut_documents(side):
    made = task("hotpotqa", truncation_side=side)
    tokenizer = family(made, tokenizer_only=True)
    # One token of the document is lost at a time; the span is whole, or it isn't there.
    row = hotpot("a land")
    encoded = made.encode(row, tokenizer, 128)
    seen = set()
    for length in range(len(encoded.ids), len(encoded.ids) - 12, -1):
        cut = made.encode(row, tokenizer, length)
        target = made.target(row, cut, tokenizer)
        assert len(target) == 3 + len(cut.ids) <= 3 + length
        seen.add(target[1] >= 0)
        if target[1] >= 0:
            assert spelled(tokenizer, cut, target) == "a land"
    assert seen == ({True} if side == "right" else {True, False})


def test_a_choice_is_its_number():
    for name in ("quality", "wikihop"):
        made = task(name)
        rows = made.load(Data(), 6, 512, 0).rows
        numbers = [made.target(row, None, None)[0] for row in rows]
        assert len(set(numbers)) > 1
        for row, number in zip(rows, numbers, strict=True):
            assert made.spell(row, str(number)) == row.references[0]
        with pytest.raises(DataError, match=r"answer 'mu' is none of its \d candidates"):
            made.target(replace(rows[0], references=("mu",)), None, None)


def test_real_spans_spell_the_answer(real_rows):
    made = task("hotpotqa")
    tokenizer = family(made, tokenizer_only=True)
    spans = 0
    for row in made.load(Data("local", real_rows), None, 4096, 0).rows:
        encoded = made.encode(row, tokenizer, 8192)
        target = made.target(row, encoded, tokenizer)
        if target[0] == 2:
            told = spelled(tokenizer, encoded, target)
            assert "".join(row.references[0].split()) in "".join(told.split())
            spans += 1
    assert spans > 40


# --- learning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hotpotqa", "quality"])
def test_a_tiny_model_learns_a_few_rows_by_heart(name):
    torch.set_num_threads(1)
    made = task(name)
    loaded = made.load(Data(split="train"), 4, 420, 0)
    whole = family(made)
    loader = BatchLoader(made, whole.tokenizer, loaded.rows, 512, 8, 4, 0, "cpu")
    optimizer = torch.optim.Adam(whole.model.parameters(), lr=3e-3)
    for step in range(150):
        optimizer.zero_grad()
        loss, right = whole.learned(*loader.at_step(step))
        loss.backward()
        optimizer.step()
        if right == 1 and loss < 0.3:
            break
    assert right == 1
    batch = loader.collate(loaded.rows)
    said = whole.generate(batch.ids, batch.sequence, 16)
    right = [row.references[0] for row in loaded.rows]
    assert [made.spell(row, one) for row, one in zip(loaded.rows, said, strict=True)] == right
