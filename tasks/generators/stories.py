"""Seeded stories of any length, with questions whose answers are in one or two sentences.

Characters give some things away and carry others about; a thing is at the place to which it was
carried last. Things share their nouns (a silver lantern here, a copper lantern there), and between
the facts is prose that is irrelevant to the questions. The splits have no name of a character in
common.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

from tasks.generators.seeds import in_split, stream
from tasks.generators.story_words import (
    ADJECTIVES,
    CLAIM,
    CLOSING,
    DISTRACTORS,
    EXTRA,
    FIRST,
    GAVE,
    LABELS,
    MOVED,
    NOUNS,
    OPENING,
    PLACES,
    PROSE,
    QUESTIONS,
    SECOND,
    SHORT,
    SLOTS,
    STOOD,
    TIMES,
    WEIGHTS,
)

VERSION = 1
TOKENS_PER_FACT = 64


@dataclass(frozen=True)
class Question:
    """A question, its right answers, and four options, one of them right."""

    text: str
    answers: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Story:
    """A story. `claims` are pairs of a hypothesis and its label, one of LABELS."""

    text: str
    questions: tuple[Question, ...]
    summary: str
    claims: tuple[tuple[str, str], ...]


@dataclass
class World:
    """The events of a story.

    places     thing → the places where it was, in order
    gifts      thing → (giver, receiver)
    facts      thing → the sentences about it, in order
    sentences  all of these sentences in the order of the story
    """

    places: dict[str, list[str]] = field(default_factory=dict)
    gifts: dict[str, tuple[str, str]] = field(default_factory=dict)
    facts: dict[str, list[str]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)


Source = tuple[str, str]  # words of an answer, and the sentence of the story that contains them


def names(split: str) -> list[str]:
    """The characters' names of a split: three fifths of all, or one fifth."""
    return [first + second for first, second in in_split(split, FIRST, SECOND)]


@lru_cache(maxsize=1)
def vocabulary() -> tuple[list[str], list[str], list[str]]:
    """All words and punctuation marks of stories, and the first and second syllables of names."""
    texts = [*PROSE, *DISTRACTORS, *SHORT, *TIMES, *STOOD, *MOVED, *GAVE, *QUESTIONS.values()]
    texts += [OPENING, CLOSING, CLAIM, "In the end.", *EXTRA, *PLACES, *ADJECTIVES, *NOUNS]
    texts += [word for words in SLOTS.values() for word in words]
    plain = " ".join(re.sub(r"\{\w*\}", " ", text) for text in texts)
    return sorted(set(re.findall(r"\w+|[^\w\s]", plain))), FIRST, SECOND


@lru_cache(maxsize=65536)
def _count_word(word: str) -> int:
    words, first, second = vocabulary()
    if word in words:
        return 1
    if any(word.startswith(a) and word[len(a) :] in second for a in first):
        return 2
    return 1 + len(word.encode())


def count_tokens(text: str) -> int:
    """Tokens of a text: one per known word or mark, two per name; an upper bound for others."""
    return sum(map(_count_word, re.findall(r"[A-Za-z]+|[^A-Za-z\s]|\s(?=\s)", text)))


def fill(rng: random.Random, template: str, **slots: list[str]) -> str:
    """A template with a random word in each {slot}, from `slots` or SLOTS."""

    def word(match: re.Match[str]) -> str:
        return rng.choice(slots.get(match[1]) or SLOTS[match[1]])

    return re.sub(r"\{(\w+)\}", word, template)


def _things(rng: random.Random, n: int) -> list[str]:
    """n different things, at most all but one, which a story then never names; about half of them
    share their noun with another."""
    nouns = rng.sample(NOUNS, min(len(NOUNS), max(2, (2 * n) // 3)))
    most = min(len(nouns) * len(ADJECTIVES), len(NOUNS) * len(ADJECTIVES) - 1)
    things: dict[str, None] = {}
    while len(things) < min(n, most):
        things[f"{rng.choice(ADJECTIVES)} {rng.choice(nouns)}"] = None
    return list(things)


def _happen(rng: random.Random, cast: list[str], things: list[str], facts: int) -> World:
    """Events with interleaved facts; those about the same thing keep their order."""
    world = World()
    timed: list[tuple[float, str]] = []

    def add_fact(when: float, templates: tuple[str, ...], thing: str, **words: str) -> None:
        template = rng.choice(templates).replace("{time}", rng.choice(TIMES))
        for slot, value in {"thing": thing, **words}.items():
            template = template.replace("{" + slot + "}", value)
        sentence = fill(rng, template, name=cast)
        world.facts.setdefault(thing, []).append(sentence)
        timed.append((when, sentence))

    for thing in things:
        if len(timed) >= facts:
            break
        if rng.random() < 0.35:
            giver, receiver = rng.sample(cast, 2)
            world.gifts[thing] = (giver, receiver)
            add_fact(rng.random(), GAVE, thing, giver=giver, name=receiver)
            continue
        stays = min(facts - len(timed), rng.choice((1, 1, 1, 2, 2, 2, 3)))
        world.places[thing] = rng.sample(PLACES, stays)
        moments = sorted(rng.random() for _ in range(stays))
        for i, (when, place) in enumerate(zip(moments, world.places[thing], strict=True)):
            add_fact(when, MOVED if i else STOOD, thing, place=place)
    world.sentences = [sentence for _, sentence in sorted(timed)]
    return world


def _write(
    rng: random.Random, world: World, cast: list[str], things: list[str], tokens: int
) -> str:
    """The facts between prose, at most `tokens` tokens, not ending with a fact; only the facts if
    `tokens` leaves no room for prose."""
    start, end = OPENING.format(*rng.sample(cast, 2)), fill(rng, CLOSING)
    if tokens < 20 * len(world.sentences):
        start = end = ""
    left = tokens - sum(map(count_tokens, (start, end, *world.sentences)))
    prose = []
    while left >= 4:
        pool = SHORT if left < 25 else DISTRACTORS if rng.random() < 0.15 else PROSE
        sentence = fill(rng, rng.choice(pool), name=cast, thing=things, place=PLACES)
        size = count_tokens(sentence)
        if size <= left:
            prose.append(sentence)
            left -= size
    gaps = sorted(rng.randrange(len(prose) + 1) for _ in world.sentences)
    body, done = [], 0
    for gap, fact in zip(gaps, world.sentences, strict=True):
        body += [*prose[done:gap], fact]
        done = gap
    return " ".join([start, *body, *prose[done:], end]).strip()


def _question(
    rng: random.Random, world: World, cast: list[str], kind: str, things: list[str]
) -> tuple[Question, list[Source]]:
    """A question of a kind about one or two of these things, and the sources of its answer."""
    if kind in ("giver", "gift"):
        thing = rng.choice(things)
        giver, receiver = world.gifts[thing]
        keys: tuple[str, ...] = (thing, receiver) if kind == "giver" else (giver, receiver)
        sources = [(giver if kind == "giver" else thing, world.facts[thing][0])]
        others = cast if kind == "giver" else [f"the {other}" for other in world.facts]
    else:
        keys = tuple(rng.sample(things, 2 if kind == "both" else 1))
        which = 0 if kind == "first" else -1
        sources = [(world.places[key][which], world.facts[key][which]) for key in keys]
        others = [f"the {place}" for stays in world.places.values() for place in stays]
    if kind == "both":
        others = [f"the {rng.choice(PLACES)} and the {rng.choice(PLACES)}" for _ in range(9)]
    article = "" if kind == "giver" else "the "
    answer = " and ".join(article + part for part, _ in sources)
    pool = sorted(set(others) - {answer})
    if len(pool) < 3:
        pool = sorted({*pool, *(f"the {place}" for place in PLACES[:4])} - {answer})
    options = [answer, *rng.sample(pool, 3)]
    rng.shuffle(options)
    return Question(QUESTIONS[kind].format(*keys), (answer,), tuple(options)), sources


def _ask(
    rng: random.Random, world: World, cast: list[str], n: int
) -> list[tuple[Question, list[Source]]]:
    """Up to n different questions about a world."""
    received = [receiver for _, receiver in world.gifts.values()]
    once = [t for t, (_, receiver) in world.gifts.items() if received.count(receiver) == 1]
    placed, gifts = list(world.places), list(world.gifts)
    candidates = {"end": placed, "first": placed, "giver": gifts, "gift": once}
    if len(placed) > 1:
        candidates["both"] = placed
    kinds = [kind for kind in candidates if candidates[kind] for _ in range(WEIGHTS[kind])]
    questions: dict[str, tuple[Question, list[Source]]] = {}
    for _ in range(4 * n):
        kind = rng.choice(kinds)
        question, sources = _question(rng, world, cast, kind, candidates[kind])
        questions.setdefault(question.text, (question, sources))
        if len(questions) == n:
            break
    return list(questions.values())


def _recap(rng: random.Random, world: World) -> str:
    """A few sentences on where things are at the end and who gave what."""
    placed = rng.sample(list(world.places), min(3, len(world.places)))
    gifts = rng.sample(list(world.gifts), min(2, len(world.gifts)))
    ends = [f"In the end the {thing} is at the {world.places[thing][-1]}." for thing in placed]
    received = ["{1} got the {0} from {2}.".format(t, *reversed(world.gifts[t])) for t in gifts]
    return " ".join(ends + received)


def _claims(rng: random.Random, world: World, n: int = 6) -> list[tuple[str, str]]:
    """n hypotheses about where things are at the end, with the three labels in turn."""
    placed, every = list(world.places), [f"{a} {noun}" for a in ADJECTIVES for noun in NOUNS]
    absent = [thing for thing in every if thing not in world.facts]
    claims = []
    for label in (LABELS * n)[:n]:
        thing = rng.choice(absent if label == LABELS[2] else placed)
        place = world.places[thing][-1] if label == LABELS[0] else rng.choice(PLACES)
        while label == LABELS[1] and place == world.places[thing][-1]:
            place = rng.choice(PLACES)
        claims.append((CLAIM.format(thing, place), label))
    return claims


def compose(rng: random.Random, split: str, tokens: int, facts: int, questions: int = 16) -> Story:
    """A story of at most `tokens` tokens with about `facts` facts, the rest prose."""
    return compose_with_sources(rng, split, tokens, facts, questions)[0]


def compose_with_sources(
    rng: random.Random, split: str, tokens: int, facts: int, questions: int
) -> tuple[Story, list[list[Source]]]:
    """A story, and for each of its questions the sources of the answer."""
    cast = rng.sample(names(split), min(320, max(4, facts)))
    things = _things(rng, facts)
    world = World()
    while not world.places:
        world = _happen(rng, cast, things, facts)
    text = _write(rng, world, cast, things, tokens)
    pairs = _ask(rng, world, cast, questions)
    claims = tuple(_claims(rng, world))
    story = Story(text, tuple(question for question, _ in pairs), _recap(rng, world), claims)
    return story, [sources for _, sources in pairs]


LEAST = 128
"""Fewest tokens of a text."""


def story(split: str, index: int, tokens: int, seed: int = 0) -> Story:
    """Story number `index` of a split; its text has nearly `tokens` tokens, never more.

    Raises ValueError for an unknown split or fewer than 128 tokens.
    """
    if tokens < LEAST:
        raise ValueError(f"tokens is {tokens}; accepted: {LEAST} and more")
    rng = stream("story", VERSION, split, seed, index, tokens)
    return compose(rng, split, tokens, max(4, tokens // TOKENS_PER_FACT))
