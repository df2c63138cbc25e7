"""How well a tokenizer knows the words of a cell's rows."""

from types import SimpleNamespace

import pytest

from bench.measure.quality import known_words
from tasks.base import Encoded, Row
from tasks.generated import GeneratedRow

TASK = SimpleNamespace(vocabulary=None)
ROWS = [Row("a", "who is it", "one two three", ()), Row("b", "where", "four", ())]
ENCODED = [Encoded([5, 2, 2, 7], [True] * 4, 12), Encoded([5, 6, 7, 8], [True] * 4, 4)]


def tokenizer(unknown: int | None) -> SimpleNamespace:
    return SimpleNamespace(unk_token_id=unknown, eos_token_id=1, pad_token_id=0)


def test_tokens_a_word_are_counted_before_truncation_and_unknown_ones_after():
    found = known_words(TASK, ROWS, ENCODED, tokenizer(2))
    assert found == {"tokens_per_word": 16 / 8, "unknown_tokens_frac": 2 / 8}


@pytest.mark.parametrize("unknown", [None, 0, 1])
def test_a_tokenizer_without_unknown_tokens_has_no_share_of_them(unknown):
    assert known_words(TASK, ROWS, ENCODED, tokenizer(unknown)) == {"tokens_per_word": 2.0}


def test_of_a_row_that_is_written_for_a_length_the_written_words_count():
    rows = [GeneratedRow("a", "who", "the shortest form", (), stream="s")]
    words = tokenizer(None)
    words.decode = lambda ids, **given: " ".join("word" for _ in ids)
    found = known_words(TASK, rows, [Encoded([5] * 8, [True] * 8, 8)], words)
    assert found == {"tokens_per_word": 1.0}


def test_a_task_of_its_own_ids_has_no_words():
    assert known_words(SimpleNamespace(vocabulary=256), ROWS, ENCODED, None) == {}
