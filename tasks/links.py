"""Embedded paragraphs about people and things whose facts have to be joined, two at a time.

A thing's paragraph says whose it is, a person's where they live; a question names the thing and
asks for the place, or compares the homes of two people. Splits share no person.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tasks import seeds, stories, story_words

OWNS = "The {} belongs to {}."
LIVES = "{} lives at the {}."
WHERE = "Where does the owner of the {} live?"
SAME = "Do {} and {} live at the same place?"
RELATION = "home_of_owner"
CANDIDATES = 8


@dataclass(frozen=True)
class Links:
    """Paragraphs (title, sentences), a question with its answer, and the same asked as WikiHop
    does: a relation of a subject, answered by one of `candidates`. `supporting` are (title,
    sentence number) of the facts that are needed."""

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
        return [" ".join(said) for _, said in self.paragraphs]


Fact = tuple[str, str, str]  # a thing, its owner, and where the owner lives


def tell(
    rng: random.Random, split: str, tokens: int, n: int, neighbours: bool = False
) -> tuple[list[Fact], tuple[tuple[str, tuple[str, ...]], ...]]:
    """n facts and their paragraphs, of `tokens` tokens at most, or the facts alone where these have
    more. Of `neighbours` the first two owners live at the same place."""
    people = rng.sample(stories.names(split), n)
    nouns = rng.sample(story_words.NOUNS, n)
    things = [f"{rng.choice(story_words.ADJECTIVES)} {noun}" for noun in nouns]
    homes = [rng.choice(story_words.PLACES) for _ in people]
    if neighbours:
        homes[1] = homes[0]
    said = {name: [LIVES.format(name, home)] for name, home in zip(people, homes, strict=True)}
    for thing, owner in zip(things, people, strict=True):
        said[f"The {thing}"] = [OWNS.format(thing, owner)]
    titles = list(said)
    # A title, its blank line, and the markers around its sentences.
    left = tokens - sum(
        stories.count_tokens(f"{title} {text[0]}") + 16 for title, text in said.items()
    )
    slots = story_words.SLOTS | {"name": people}
    while True:
        title, template = rng.choice(titles), rng.choice(story_words.PROSE)
        sentence = re.sub(r"\{(\w+)\}", lambda slot: rng.choice(slots[slot[1]]), template)
        left -= stories.count_tokens(sentence) + 4
        if left < 0:
            break
        said[title].append(sentence)
    rng.shuffle(titles)
    paragraphs = tuple((title, tuple(said[title])) for title in titles)
    return list(zip(things, people, homes, strict=True)), paragraphs


def links(split: str, index: int, tokens: int, seed: int = 0) -> Links:
    """Paragraphs of about `tokens` tokens, never more. ValueError below 256 tokens."""
    if tokens < 256:
        raise ValueError(f"tokens is {tokens}; accepted: 256 and more")
    rng = seeds.stream("links", split, seed, index)
    # A quarter of the tokens is facts, the rest prose that decides nothing.
    n = max(2, min(40, tokens // 128))
    facts, paragraphs = tell(rng, split, tokens, n, neighbours=n > 3 and index % 4 == 1)
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
