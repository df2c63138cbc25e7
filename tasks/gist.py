"""Seeded texts whose gist is spread over the whole of them, with a summary that tells it.

A few folks have their habits: what they do and eat, what they fear and where they live. Many
sentences say one of a folk's habits, in any order and far from each other; some say one that isn't
theirs, and prose that tells nothing stands between. The summary has a line a folk. No single
sentence decides it: a reader that sees the text blurred, or a part of it, may still sum it up.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import NamedTuple

from tasks import stories
from tasks.metrics import rouge
from tasks.seeds import stream
from tasks.stories import count_tokens
from tasks.story_pairs import Copy, Pair
from tasks.story_words import PROSE, SLOTS

VERSION = 1
QUERY = "summarize"  # as in tasks.summaries
AROUND = count_tokens(QUERY) + 2  # the query, its border with the text, and the end
FOLKS = 3
STRAY, PROSE_SHARE = 0.3, 0.3
HABITS = {
    "act": ("The {folk} {act} {how}.", "All {day} the {folk} {act}."),
    "food": ("The {folk} ate {food} in the {day}.", "The {folk} had {food} and a {fair} song."),
    "beast": ("The {folk} feared the {beast}.", "Every {day} the {folk} feared the {beast}."),
    "land": ("The {folk} lingered by the {land}.", "Every {day} the {folk} came to the {land}."),
}
PLAIN = tuple(template for template in PROSE if "{name}" not in template)
LINE = "{folk} {act}: {food}, {beast}, {land}."


class Told(NamedTuple):
    """A text and its summary. `copies` are the words of the summary that vary, once for each
    place of the text that tells them rightly; no question is asked."""

    text: str
    summary: str
    copies: tuple[Copy, ...]


def vocabulary() -> tuple[list[str], list[str], list[str]]:
    """The words of stories and of these summaries, and the syllables of names."""
    words, first, second = stories.vocabulary()
    return sorted({*words, *map(str.capitalize, SLOTS["folk"])}), first, second


def gist(split: str, index: int, tokens: int, seed: int = 0) -> Told:
    """Text number `index` of a split, of at most `tokens` tokens and nearly as many. Raises
    ValueError for fewer than 200: they don't tell enough."""
    if tokens < 200:
        raise ValueError(f"tokens is {tokens}; accepted: 200 and more")
    rng = stream("gist", VERSION, split, seed, index, tokens)
    folks = sorted(rng.sample(SLOTS["folk"], FOLKS))
    drawn = {kind: rng.sample(SLOTS[kind], FOLKS) for kind in HABITS}
    habits = {folk: {kind: drawn[kind][i] for kind in HABITS} for i, folk in enumerate(folks)}
    sentences = _sentences(rng, habits, tokens)
    rng.shuffle(sentences)
    lines = [LINE.format(**{**habits[f], "folk": f.capitalize()}) for f in folks]
    summary, text, copies = " ".join(lines), "", []
    for sentence, about in sentences:
        if about:
            folk, kind = about
            word, line = habits[folk][kind], lines[folks.index(folk)]
            answer, at = summary.index(line) + line.rindex(word), len(text) + sentence.rindex(word)
            copies.append(Copy(answer, len(word), 0, at))
        text += sentence + " "
    return Told(text[:-1], summary, tuple(copies))


def _sentences(
    rng: random.Random, habits: dict[str, dict[str, str]], tokens: int
) -> list[tuple[str, tuple[str, str] | None]]:
    """Sentences, each with the folk and kind of the habit that it tells rightly. Of those on one
    habit of a folk at least two thirds do, so that what is told most is right."""
    found: list[tuple[str, tuple[str, str] | None]] = []
    right: Counter[tuple[str, str]] = Counter()
    stray: Counter[tuple[str, str]] = Counter()
    open_kinds = [(folk, kind) for folk in habits for kind in HABITS]
    while True:
        about = open_kinds.pop(0) if open_kinds else (rng.choice([*habits]), rng.choice([*HABITS]))
        folk, kind = about
        template, given = rng.choice(HABITS[kind]), {"folk": folk, kind: habits[folk][kind]}
        wrong = rng.random() < STRAY and 2 * (stray[about] + 1) <= right[about]
        if rng.random() < PROSE_SHARE and right[about]:
            template, given = rng.choice(PLAIN), {}
        elif wrong:
            given[kind] = rng.choice([word for word in SLOTS[kind] if word != given[kind]])
        sentence = _fill(rng, template, given)
        tokens -= count_tokens(sentence)
        if tokens < 0:
            return found
        (stray if wrong else right)[about] += bool(given)
        found.append((sentence, about if given and not wrong else None))


def _fill(rng: random.Random, template: str, given: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: given.get(m[1]) or rng.choice(SLOTS[m[1]]), template)


def training_pair(index: int, seed: int, tokens: int, questions: int = 1) -> Pair:
    """A text of the training split to sum up; there is nothing to ask."""
    told = gist("train", index, tokens, seed + 1)
    return Pair(QUERY, told.text, told.summary, told.copies)


def held_out(index: int, tokens: int) -> list[tuple[str, str, tuple[str, ...]]]:
    """The row (query, text, right summaries) of one validation text."""
    told = gist("validation", index, tokens - AROUND)
    return [(QUERY, told.text, (told.summary,))]


def rouge_lsum(given: str, right: tuple[str, ...]) -> float:
    """Stemmed ROUGE-Lsum in 0…1, a line a sentence, as conf/task/gist.yaml scores."""
    cut = [re.sub(r"\. ", ".\n", text) for text in (given, *right)]
    return rouge.stemmed(cut[0], cut[1:])["rougeLsum"] / 100
