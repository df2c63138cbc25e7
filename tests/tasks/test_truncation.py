"""Truncation: which characters of a row's text are removed, and whether they contained an
answer."""

from dataclasses import replace

import pytest

from bench.models.checkpoints import load_tokenizer
from bench.request.plugins import ROOT, build, conf
from tasks.base import Row
from tasks.loading import prompts, truncation
from tests.tasks.words import Words

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


class Counting:
    """A tokenizer that counts its calls, and the characters that it is given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.eos_token_id = tokenizer, tokenizer.eos_token_id
        self.is_fast, self.given = True, []

    def __call__(self, text, **options):
        self.given.append(len(text))
        return self.tokenizer(text, **options)

    def decode(self, ids, **options):
        return self.tokenizer.decode(ids, **options)


@pytest.fixture
def long_text(monkeypatch):
    """A text of 50 times the characters that are tokenized as a whole."""
    monkeypatch.setattr(truncation, "WHOLE_CHARS", 1 << 13)
    return " ".join(f"Box {i} holds {1000 + 7 * i} coins." for i in range(16_000))


@pytest.mark.parametrize("how", ENCODERS)
def test_of_a_long_text_a_part_is_tokenized_and_the_same_is_seen(tokenizer, how, long_text):
    truncation.WHOLE_CHARS = 1 << 11
    row = replace(PROMPT, document=long_text[: 50 * truncation.WHOLE_CHARS])
    counting = Counting(tokenizer)
    encoded = ENCODERS[how](row, counting, 300)
    assert sum(counting.given) < 10 * truncation.WHOLE_CHARS < len(row.document) / 4
    truncation.WHOLE_CHARS = len(row.text)
    whole = ENCODERS[how](row, tokenizer, 300)
    assert encoded.estimated and not whole.estimated
    assert replace(encoded, tokens_in=0, estimated=False) == replace(whole, tokens_in=0)
    assert encoded.tokens_in == pytest.approx(whole.tokens_in, rel=0.1)


@pytest.mark.parametrize("text", ["a" * 20_000, "ab" * 10_000, " " * 20_000 + "a b", "-=" * 9_001])
@pytest.mark.parametrize("end", [False, True])
def test_texts_without_words_have_the_tokens_of_the_whole(tokenizer, long_text, text, end):
    found = truncation.part(text, tokenizer, 50, end=end)
    whole = tokenizer(text)["input_ids"]
    assert found.ids[-50:] == whole[-50:] if end else found.ids[:50] == whole[:50]


def test_more_is_read_where_a_part_has_too_few_tokens(long_text):
    words = Counting(Words())
    text = "x" * 20_000 + " y" * 10_000
    part = truncation.part(text, words, 50)
    assert part.chars == 4 * truncation.WHOLE_CHARS and max(words.given) == part.chars
    text = "x" * 100_000 + " y"
    part = truncation.part(text, words, 50)
    assert (part.chars, part.tokens_in(text)) == (len(text), (3, False))


def test_an_option_of_the_query_is_no_answer_in_the_text():
    query = "Where?\n (A) the attic\n (B) the barn"
    row = Row("a", query, "It was hidden. Nobody saw it.", ("the barn",))
    assert truncation.answer_removed(row, (3, len(row.document))) is None
    told = replace(row, document="It was in the barn. Nobody saw it.")
    assert truncation.answer_removed(told, (3, 20)) is True
    assert truncation.answer_removed(told, (20, 33)) is False
