"""Texts with a spread gist: what is told most is right, nowhere decides it, sizes and splits."""

from collections import Counter

import pytest

from bench import plugins
from tasks.base import Data, DataError
from tasks.gist import FOLKS, HABITS, gist, held_out, rouge_lsum, training_pair
from tasks.stories import count_tokens
from tasks.story_words import SLOTS


def sentences(text: str) -> list[str]:
    return [part.lower().split() for part in text.rstrip(".").split(". ")]


def habits(line: str) -> dict[str, str]:
    """Slot → word of a summary's line, the folk too."""
    words = line.lower().replace(":", "").replace(",", "").split()
    return dict(zip(["folk", *HABITS], words, strict=True))


@pytest.mark.parametrize("tokens", [256, 1024])
def test_each_habit_is_told_most_and_most_often_rightly(tokens):
    told = gist("validation", 0, tokens)
    lines = told.summary.rstrip(".").split(". ")
    assert len(lines) == FOLKS
    for line in lines:
        mine = habits(line)
        assert all(word in SLOTS[slot] for slot, word in mine.items())
        about = [words for words in sentences(told.text) if mine["folk"] in words]
        for kind in HABITS:
            said = Counter(word for words in about for word in words if word in SLOTS[kind])
            assert said.most_common(1)[0][0] == mine[kind]


def test_the_gist_is_told_in_each_half_of_a_text():
    told = gist("validation", 1, 2048)
    half = told.text.index(". ", len(told.text) // 2)
    for part in (told.text[:half], told.text[half:]):
        for line in told.summary.rstrip(".").split(". "):
            mine = habits(line)
            for kind in HABITS:
                assert any({mine["folk"], mine[kind]} <= {*words} for words in sentences(part))


def test_sizes_and_splits():
    for tokens in (256, 999):
        assert tokens - 16 <= count_tokens(gist("test", 2, tokens).text) <= tokens
    assert gist("train", 0, 256) == gist("train", 0, 256) != gist("validation", 0, 256)
    with pytest.raises(ValueError, match="tokens is 199; accepted: 200 and more"):
        gist("train", 0, 199)


def test_copies_name_the_words_that_vary():
    pair = training_pair(0, 0, 256)
    words = [pair.answer[copy.answer :][: copy.length] for copy in pair.copies]
    assert words == [pair.document[copy.document :][: copy.length] for copy in pair.copies]
    assert len({copy.answer for copy in pair.copies}) == FOLKS * len(HABITS) < len(words)
    assert pair.document != held_out(0, 256)[0][1]


def test_the_task_scores_as_the_check_of_the_shipped_model_does():
    task = plugins.build(plugins.conf("task", "gist"))
    row, other = task.load(Data(), 2, 512, 0).rows
    assert task.score(row.references, [row.references])["value"] == 100
    found = task.score(other.references, [row.references])["value"]
    assert found < 80 and found == pytest.approx(
        100 * rouge_lsum(*other.references, row.references), abs=1e-3
    )
    with pytest.raises(DataError, match="length=200 is too short for a text"):
        task.load(Data(), 2, 200, 0)
