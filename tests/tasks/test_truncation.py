"""Truncation: which characters of a row's text are gone, and whether an answer was among them."""

from __future__ import annotations

import pytest

from bench.models.checkpoints import load_tokenizer
from bench.request.plugins import ROOT, build, conf
from tasks.base import Row
from tasks.loading import prompts, truncation

FACTS = [f"Box {i} holds {1000 + 7 * i} coins." for i in range(200)]
DOCUMENT = " ".join(FACTS)
PROMPT = prompts.Prompt("a", " What does box 3 hold?", DOCUMENT, ("1021 coins",), ending=" It is")


@pytest.fixture(scope="module", params=["llama", "t5", "bart"])
def tokenizer(request):
    return load_tokenizer(ROOT / "bench/models/embedded" / request.param)


def reader(side):
    return build({**conf("task", "qasper"), "truncation_side": side})


ENCODERS = {
    "end": prompts.encode,
    "middle": prompts.encode_middle,
    "right": lambda *given: reader("right").encode(*given),
    "left": lambda *given: reader("left").encode(*given),
}


@pytest.mark.parametrize("how", ENCODERS)
def test_what_is_removed_is_what_the_model_does_not_see(tokenizer, how):
    encoded = ENCODERS[how](PROMPT, tokenizer, 300)
    seen = tokenizer.decode(encoded.ids)
    start, stop = encoded.removed
    kept = f"{PROMPT.text[:start]}|{PROMPT.text[stop:]}"
    assert {"end": start > 0, "middle": start > 0, "right": start > 0, "left": start == 0}[how]
    # A fact at either border may be there in part.
    whole = [fact for fact in FACTS if fact in kept]
    assert 5 < len(whole) < len(FACTS)
    assert abs(len(whole) - sum(fact in seen for fact in FACTS)) <= 2
    assert ENCODERS[how](PROMPT, tokenizer, 8000).removed is None


@pytest.mark.parametrize(
    ("answers", "lost"),
    [(("1021 coins",), False), (("2001 COINS",), True), (("a summary",), None),
     (("2001 coins", "a summary"), True), ((), None)],
)  # fmt: skip
def test_an_answer_is_gone_where_it_stood_in_what_was_removed(answers, lost):
    row = Row("a", "What?", DOCUMENT, answers)
    assert truncation.answer_removed(row, (len(DOCUMENT) // 2, len(DOCUMENT))) is lost


def test_a_tokenizer_without_places_does_not_tell(tokenizer):
    slow = type("Slow", (), {"is_fast": False, "__call__": None})()
    assert truncation.removed(DOCUMENT, slow, 3, 0) is None
    assert truncation.removed(DOCUMENT, tokenizer, 0, 0, special=False) == (0, len(DOCUMENT))
