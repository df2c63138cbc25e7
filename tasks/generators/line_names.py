"""Names of the lines in LongEval's records (generate_line_index of longeval/utils.py)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from random import Random

from tasks.generators import story_words
from tasks.generators.seeds import in_split

STYLES = ("LRT", "LRT-ABCindex", "LRT-UUID", "LRT-NL")


def line_names(style: str, split: str, rng: Random, n: int | None) -> Iterator[str]:
    """Endless names in one of STYLES: 1, 2, …; AAAAAA, AAAAAB, …; UUIDs; words, which differ
    between splits."""
    if style == "LRT":
        return map(str, itertools.count(1))
    if style == "LRT-UUID":
        return (str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in itertools.count())
    if style == "LRT-ABCindex":
        # Six letters give 46656 names; for more lines the official code uses more letters.
        width = 6
        while n and 6**width < n:
            width += 1
        return map("".join, itertools.product("ABCDEF", repeat=width))
    return _word_names(split, rng)


def _word_names(split: str, rng: Random) -> Iterator[str]:
    """Every adjective-noun once, then those with two adjectives, and so on."""
    words = story_words
    adjectives = [*words.ADJECTIVES, *words.PLACE_ADJECTIVES, *words.SLOTS["fair"]]
    nouns = [*words.NOUNS, *words.PLACE_NOUNS, *words.PLACE_NAMES, *words.SLOTS["land"]]
    adjectives, nouns = list(dict.fromkeys(adjectives)), list(dict.fromkeys(nouns))
    heads = adjectives
    while True:
        names = [f"{head}-{noun}" for head, noun in in_split(split, heads, nouns)]
        rng.shuffle(names)
        yield from names
        heads = [f"{adjective}-{head}" for adjective in adjectives for head in heads]
