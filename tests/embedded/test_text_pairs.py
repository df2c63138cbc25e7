"""Training pairs of the encoder-decoders: the questions, and the sources of the copied words."""

import re

import pytest

from tasks.generators.stories import count_tokens
from tools.embedded.rows.text_pairs import gist_pair, story_pair


def test_training_pairs_number_several_questions():
    pair = story_pair(0, seed=0, tokens=512, facts=16, questions=8)
    numbers = [re.findall(r"\b\d\b", text) for text in (pair.query, pair.answer)]
    assert numbers == [list("12345678")] * 2
    assert count_tokens(pair.document) <= 512
    single = story_pair(0, seed=0, tokens=512, facts=16, questions=1)
    assert not re.search(r"\d", single.query + single.answer)


@pytest.mark.parametrize("questions", [1, 4])
def test_training_pairs_say_what_is_copied_from_where(questions):
    for index in range(20):
        pair = story_pair(index, seed=1, tokens=256, facts=8, questions=questions)
        for copy in pair.copies:
            words = pair.answer[copy.answer :][: copy.length]
            assert words == pair.document[copy.document :][: copy.length] != ""
            assert pair.query[: copy.question].endswith("?" if questions == 1 else tuple("1234"))


def test_every_copy_of_a_summary_stands_in_its_text():
    pair = gist_pair(0, seed=0, tokens=256)
    assert pair.copies and not any(copy.question for copy in pair.copies)
    for copy in pair.copies:
        words = pair.answer[copy.answer :][: copy.length]
        assert words == pair.document[copy.document :][: copy.length] != ""
