"""Paragraphs about people and things for questions that combine two facts.

A thing's paragraph names its owner, a person's paragraph their home. A question asks where the
owner of a thing lives, or whether two people have the same home. Splits have no person in common.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tasks.generators import seeds, stories, story_words

OWNS = "The {} belongs to {}."
LIVES = "{} lives at the {}."
WHERE = "Where does the owner of the {} live?"
SAME = "Do {} and {} live at the same place?"
RELATION = "home_of_owner"
CANDIDATES = 8


@dataclass(frozen=True)
class Links:
    """Paragraphs (title, sentences), a question with its answer, and the same in WikiHop's form:
    the relation of a subject to `home`, one of `candidates`. `supporting` contains (title, sentence
    number) of the required facts."""

    paragraphs: tuple[tuple[str, tuple[str, ...]], ...]
    question: str
    answer: str
    subject: str
    home: str
    candidates: tuple[str, ...]
    supporting: tuple[tuple[str, int], ...]

    @property
    def supports(self) -> list[str]:
        """The paragraphs as texts without titles."""
        return [" ".join(sentences) for _, sentences in self.paragraphs]


Fact = tuple[str, str, str]  # a thing, its owner, and the owner's home


def linked_facts(
    rng: random.Random, split: str, tokens: int, n: int, neighbours: bool = False
) -> tuple[list[Fact], tuple[tuple[str, tuple[str, ...]], ...]]:
    """n facts and their paragraphs with at most `tokens` tokens, or only the facts if these have
    more. With `neighbours`, the first two owners have the same home."""
    people = rng.sample(stories.names(split), n)
    nouns = rng.sample(story_words.NOUNS, n)
    things = [f"{rng.choice(story_words.ADJECTIVES)} {noun}" for noun in nouns]
    homes = [rng.choice(story_words.PLACES) for _ in people]
    if neighbours:
        homes[1] = homes[0]
    texts = {name: [LIVES.format(name, home)] for name, home in zip(people, homes, strict=True)}
    for thing, owner in zip(things, people, strict=True):
        texts[f"The {thing}"] = [OWNS.format(thing, owner)]
    titles = list(texts)
    # 16 for the blank line after a title and the markers around its sentences.
    left = tokens - sum(
        stories.count_tokens(f"{title} {text[0]}") + 16 for title, text in texts.items()
    )
    while True:
        title, template = rng.choice(titles), rng.choice(story_words.PROSE)
        sentence = stories.fill(rng, template, name=people)
        left -= stories.count_tokens(sentence) + 4
        if left < 0:
            break
        texts[title].append(sentence)
    rng.shuffle(titles)
    paragraphs = tuple((title, tuple(texts[title])) for title in titles)
    return list(zip(things, people, homes, strict=True)), paragraphs


LEAST = 256
"""Fewest tokens of a text."""


def links(split: str, index: int, tokens: int, seed: int = 0) -> Links:
    """Paragraphs of about `tokens` tokens, never more. Raises ValueError below 256 tokens."""
    if tokens < LEAST:
        raise ValueError(f"tokens is {tokens}; accepted: {LEAST} and more")
    rng = seeds.stream("links", split, seed, index)
    # A quarter of the tokens are facts, the rest is prose irrelevant to the question.
    n = max(2, min(40, tokens // 128))
    facts, paragraphs = linked_facts(rng, split, tokens, n, neighbours=n > 3 and index % 4 == 1)
    (thing, owner, home), (_, other, elsewhere) = facts[:2]
    others = sorted(set(story_words.PLACES) - {home})
    candidates = [home, *rng.sample(others, CANDIDATES - 1)]
    rng.shuffle(candidates)
    if index % 4 in (1, 3):
        question = SAME.format(owner, other)
        answer = "yes" if home == elsewhere else "no"
        supporting = ((owner, 0), (other, 0))
    else:
        question = WHERE.format(thing)
        answer = home
        supporting = ((f"The {thing}", 0), (owner, 0))
    return Links(paragraphs, question, answer, thing, home, tuple(candidates), supporting)
