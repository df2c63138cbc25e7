"""Seeded texts whose content is spread over the whole text, with a summary of it.

A few folks have habits: what they do, eat and fear, and where they live. Many sentences state a
habit of a folk, in random order and far apart; some state a wrong habit, and irrelevant prose is
between them. The summary has a line per folk. It doesn't depend on any single sentence, so a
blurred version or a part of the text is enough to find it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import NamedTuple

from tasks.generators import stories
from tasks.generators.seeds import stream
from tasks.generators.stories import count_tokens
from tasks.generators.story_words import PROSE, SLOTS

VERSION = 1
QUERY = "summarize"  # as in tasks.summaries
AROUND = count_tokens(QUERY) + 2  # the query, the border between it and the text, and the end
FOLKS = 3
WRONG, PROSE_SHARE = 0.3, 0.3
HABITS = {
    "act": ("The {folk} {act} {how}.", "All {day} the {folk} {act}."),
    "food": ("The {folk} ate {food} in the {day}.", "The {folk} had {food} and a {fair} song."),
    "beast": ("The {folk} feared the {beast}.", "Every {day} the {folk} feared the {beast}."),
    "land": ("The {folk} lingered by the {land}.", "Every {day} the {folk} came to the {land}."),
}
PLAIN = tuple(template for template in PROSE if "{name}" not in template)
LINE = "{folk} {act}: {food}, {beast}, {land}."


class Source(NamedTuple):
    """A variable word of the summary, and one passage of the text that states it correctly: its
    first character in both, and its length."""

    summary: int
    text: int
    length: int


class GistText(NamedTuple):
    """A text, its summary, and all sources of each variable word of the summary."""

    text: str
    summary: str
    sources: tuple[Source, ...]


def vocabulary() -> tuple[list[str], list[str], list[str]]:
    """The words of stories and of these summaries, and the syllables of names."""
    words, first, second = stories.vocabulary()
    return sorted({*words, *map(str.capitalize, SLOTS["folk"])}), first, second


LEAST = 200
"""Fewest tokens of a text."""


def gist(split: str, index: int, tokens: int, seed: int = 0) -> GistText:
    """Text number `index` of a split, with nearly `tokens` tokens, never more. Raises ValueError
    for fewer than 200, which have no room for all habits."""
    if tokens < LEAST:
        raise ValueError(f"tokens is {tokens}; accepted: {LEAST} and more")
    rng = stream("gist", VERSION, split, seed, index, tokens)
    folks = sorted(rng.sample(SLOTS["folk"], FOLKS))
    words = {kind: rng.sample(SLOTS[kind], FOLKS) for kind in HABITS}
    habits = {folk: {kind: words[kind][i] for kind in HABITS} for i, folk in enumerate(folks)}
    sentences = _sentences(rng, habits, tokens)
    rng.shuffle(sentences)
    lines = [LINE.format(**{**habits[f], "folk": f.capitalize()}) for f in folks]
    summary, text, sources = " ".join(lines), "", []
    for sentence, about in sentences:
        if about:
            folk, kind = about
            word, line = habits[folk][kind], lines[folks.index(folk)]
            answer, at = summary.index(line) + line.rindex(word), len(text) + sentence.rindex(word)
            sources.append(Source(answer, at, len(word)))
        text += sentence + " "
    return GistText(text[:-1], summary, tuple(sources))


def _sentences(
    rng: random.Random, habits: dict[str, dict[str, str]], tokens: int
) -> list[tuple[str, tuple[str, str] | None]]:
    """Sentences, each with the folk and kind of the habit that it states correctly, or None. At
    least two thirds of those on a habit are correct, so the most frequent statement is correct."""
    result: list[tuple[str, tuple[str, str] | None]] = []
    n_right: Counter[tuple[str, str]] = Counter()
    n_wrong: Counter[tuple[str, str]] = Counter()
    remaining = [(folk, kind) for folk in habits for kind in HABITS]
    while True:
        about = remaining.pop(0) if remaining else (rng.choice([*habits]), rng.choice([*HABITS]))
        folk, kind = about
        template, words = rng.choice(HABITS[kind]), {"folk": folk, kind: habits[folk][kind]}
        is_wrong = rng.random() < WRONG and 2 * (n_wrong[about] + 1) <= n_right[about]
        if rng.random() < PROSE_SHARE and n_right[about]:
            template, words = rng.choice(PLAIN), {}
        elif is_wrong:
            words[kind] = rng.choice([word for word in SLOTS[kind] if word != words[kind]])
        sentence = _fill(rng, template, words)
        tokens -= count_tokens(sentence)
        if tokens < 0:
            return result
        (n_wrong if is_wrong else n_right)[about] += bool(words)
        result.append((sentence, about if words and not is_wrong else None))


def _fill(rng: random.Random, template: str, words: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: words.get(m[1]) or rng.choice(SLOTS[m[1]]), template)
