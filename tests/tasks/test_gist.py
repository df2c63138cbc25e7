"""Texts with content spread over them: frequent statements are right, sizes and splits."""

from collections import Counter

import pytest

from tasks.generators.gist import FOLKS, HABITS, gist
from tasks.generators.story_words import SLOTS


def sentences(text: str) -> list[str]:
    return [part.lower().split() for part in text.rstrip(".").split(". ")]


def habits(line: str) -> dict[str, str]:
    """Slot → word of a summary's line, the folk too."""
    words = line.lower().replace(":", "").replace(",", "").split()
    return dict(zip(["folk", *HABITS], words, strict=True))


@pytest.mark.parametrize("tokens", [256, 1024])
def test_the_most_frequent_statement_of_a_habit_is_right(tokens):
    generated = gist("validation", 0, tokens)
    lines = generated.summary.rstrip(".").split(". ")
    assert len(lines) == FOLKS
    for line in lines:
        mine = habits(line)
        assert all(word in SLOTS[slot] for slot, word in mine.items())
        about = [words for words in sentences(generated.text) if mine["folk"] in words]
        for kind in HABITS:
            said = Counter(word for words in about for word in words if word in SLOTS[kind])
            assert said.most_common(1)[0][0] == mine[kind]
