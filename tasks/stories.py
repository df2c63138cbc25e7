"""Seeded stories of any length, with questions whose answers stand in one or two places.

Characters give things away and carry other things about; what was carried twice is where it was
carried last. Things share their nouns (a silver lantern here, a copper lantern there), and between
the facts stands prose that decides nothing. Characters of the three splits never share a name.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

VERSION = 1
SPLITS = ("train", "validation", "test")
TOKENS_PER_FACT = 64

FIRST = (
    "Mar Tan Bel Cor Dra El Fen Gar Hal Is Jor Kel Lor Mir Nor Or Pel Quil Ros Sel Tor Ul Ver Wil "
    "Yar Zan Bran Cal Del Er Fal Gil Hes Il Jas Kor Lin Mel Nim Os"
).split()
SECOND = (
    "lo na ric da vin mo la ren sa to mi dor wen ka bel ia us eth an is ra go ley mond ta win ster "
    "fa dra no li po gan wick rus zo bert cy qua ham"
).split()
ADJECTIVES = (
    "silver copper brass iron golden wooden painted broken heavy little green blue red white black "
    "yellow ancient borrowed carved cracked dusty foreign polished stolen"
).split()
NOUNS = (
    "lantern compass key clock mirror violin kettle ladder basket trunk anchor saddle bell drum "
    "globe candle statue hammer shovel barrel blanket bottle bowl box brush button cage carpet "
    "chain chair chest coat comb crown cup dagger desk doll flag flute fork glove goblet harp hat "
    "helmet jar jug kite knife locket loom map medal necklace needle oar pipe plate purse ring "
    "rope scroll shield"
).split()
PLACE_ADJECTIVES = "old new upper lower north south east west stone quiet".split()
PLACE_NOUNS = (
    "mill harbour chapel market tower bridge library stable bakery orchard cellar attic barn "
    "school forge inn quarry lighthouse cottage ferry garden theatre station courtyard"
).split()
PLACE_NAMES = (
    "palace monastery windmill vineyard brewery hospital prison museum bathhouse granary pharmacy "
    "boathouse cemetery fountain workshop greenhouse townhall treasury laundry dovecote tannery "
    "sawmill pier barracks"
).split()
PLACES = [*PLACE_NAMES, *(f"{a} {n}" for a in PLACE_ADJECTIVES for n in PLACE_NOUNS)]

SLOTS = {
    "sky": "sky wind rain moon sun fog snow storm mist frost".split(),
    "did": "came went turned faded returned lingered passed waited settled vanished".split(),
    "how": "slowly again early late softly twice gently quietly soon suddenly".split(),
    "land": "valley river forest road hills fields village meadow marsh lake".split(),
    "folk": "farmers children sailors travellers neighbours merchants weavers fishermen".split(),
    "act": "sang talked laughed argued worked slept danced rested prayed hurried".split(),
    "beast": "dogs horses geese crows cats sheep goats owls swallows bees".split(),
    "food": "bread soup cheese apples tea porridge fish honey plums beans".split(),
    "day": "morning evening night afternoon winter summer spring autumn".split(),
    "fair": "long cold warm bright grey pale strange dim busy narrow".split(),
}
PROSE = (
    "The {sky} {did} {how}.",
    "It was a {fair} {day}, and the {folk} {act}.",
    "All {day} the {folk} {act} by the {land}.",
    "Some said that the {day} would be {fair}, but nobody knew.",
    "The {beast} {act} {how} while the {sky} {did} over the {land}.",
    "They had {food} for everyone, and there were songs about the {land}.",
    "Every {day} the {folk} ate {food} with {food} and {act} until the {sky} {did}.",
    "The {land} was {fair}, as it had always been in the {day}.",
    "In those days the {folk} feared the {sky} more than the {beast}.",
    "Beyond the {land} the {fair} road {did}, and the {folk} {act} {how}.",
    "When the {day} {did}, the {beast} were {fair} and the {folk} had no {food}.",
    "Far away a {fair} {sky} {did} over the {fair} {land}.",
    "They had {food}, a little {food} and a {fair} song for the {day}.",
    "{name} {act} {how} with the {folk} and thought about the {land}.",
    "{name} bought {food} from the {folk} and ate it by the {land}.",
    "{name} and {name} {act} until the {sky} {did}.",
)
DISTRACTORS = (
    "{name} dreamed about the {thing} all {day}.",
    "Nobody spoke of the {thing} that {day}.",
    "{name} walked past the {place} and {act} {how}.",
    "The {folk} {act} near the {place}.",
    "{name} asked {name} about the {thing}, but {name} said nothing.",
    "The {place} was {fair} that {day}.",
)
SHORT = ("The {sky} {did}.", "Time {did}.", "The {folk} {act}.")
TIMES = ("", "", "Later ", "Then ", "One {day} ", "After that ")
STOOD = ("The {thing} {stood} at the {place}.", "{name} found the {thing} at the {place}.")
MOVED = ("{time}{name} {carried} the {thing} to the {place}.",)
GAVE = ("{time}{name} {got} the {thing} from {giver}.",)
SLOTS["stood"] = "stood lay rested waited".split()
SLOTS["carried"] = "carried brought moved dragged".split()
SLOTS["got"] = "got received accepted borrowed".split()
QUESTIONS = {
    "end": "Where is the {} at the end?",
    "first": "Where was the {} at first?",
    "giver": "Who gave the {} to {}?",
    "gift": "What did {} give to {}?",
    "both": "Where are the {} and the {} at the end?",
}
WEIGHTS = {"end": 8, "first": 3, "giver": 4, "gift": 3, "both": 2}
OPENING = "This is a story about {} and {}, and about many things."
CLOSING = "And so the story came to its end, and the {folk} {act} {how}."
CLAIM = "The {} is at the {} at the end."
LABELS = ("Entailment", "Contradiction", "Not mentioned")
EXTRA = "the a and is was in to of ; : 1 2 3 4 5 6 7 8".split()


@dataclass(frozen=True)
class Question:
    """A question, its right answers, and four options of which one is right."""

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
    """What happened: the places of each thing in order, and who gave what to whom."""

    places: dict[str, list[str]] = field(default_factory=dict)
    gifts: dict[str, tuple[str, str]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)


def names(split: str) -> list[str]:
    """The characters' names of a split: three fifths of all, or one fifth."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; accepted: {', '.join(SPLITS)}")
    parts = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}[split]
    return [
        a + b for i, a in enumerate(FIRST) for j, b in enumerate(SECOND) if (i + 2 * j) % 5 in parts
    ]


@lru_cache(maxsize=1)
def vocabulary() -> tuple[list[str], list[str], list[str]]:
    """The whole words and marks of all stories, and the first and second syllables of names."""
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
    """Tokens of a text: one a known word or mark, two a name; more than enough for other text."""
    return sum(map(_count_word, re.findall(r"[A-Za-z]+|[^A-Za-z\s]|\s(?=\s)", text)))


def _fill(rng: random.Random, template: str, **given: list[str]) -> str:
    def word(match: re.Match[str]) -> str:
        return rng.choice(given.get(match[1]) or SLOTS[match[1]])

    return re.sub(r"\{(\w+)\}", word, template)


def _things(rng: random.Random, n: int, still: bool) -> list[str]:
    """n different things; about half of them share their noun with another one, fewer if still."""
    nouns = rng.sample(NOUNS, min(len(NOUNS), 4 * n if still else max(2, (2 * n) // 3)))
    found: dict[str, None] = {}
    while len(found) < min(n, len(nouns) * len(ADJECTIVES)):
        found[f"{rng.choice(ADJECTIVES)} {rng.choice(nouns)}"] = None
    return list(found)


def _happen(
    rng: random.Random, cast: list[str], things: list[str], facts: int, still: bool
) -> World:
    """Facts in the order of the story: a thing's own facts stay in order, others interleave. In a
    still world nothing moves and nothing is given."""
    world = World()
    timed: list[tuple[float, str]] = []

    def tell(when: float, templates: tuple[str, ...], **given: str) -> None:
        template = rng.choice(templates).replace("{time}", rng.choice(TIMES))
        for slot, value in given.items():
            template = template.replace("{" + slot + "}", value)
        timed.append((when, _fill(rng, template, name=cast)))

    for thing in things:
        if len(timed) >= facts:
            break
        if not still and rng.random() < 0.35:
            giver, receiver = rng.sample(cast, 2)
            world.gifts[thing] = (giver, receiver)
            tell(rng.random(), GAVE, thing=thing, giver=giver, name=receiver)
            continue
        stays = min(facts - len(timed), 1 if still else rng.choice((1, 1, 1, 2, 2, 2, 3)))
        world.places[thing] = rng.sample(PLACES, stays)
        moments = sorted(rng.random() for _ in range(stays))
        for i, (when, place) in enumerate(zip(moments, world.places[thing], strict=True)):
            tell(when, MOVED if i else STOOD, thing=thing, place=place)
    world.sentences = [sentence for _, sentence in sorted(timed)]
    return world


def _write(
    rng: random.Random, world: World, cast: list[str], things: list[str], tokens: int
) -> str:
    """The facts between prose, at most `tokens` tokens, never ending with a fact; where `tokens`
    leaves no room for prose, the facts alone."""
    start, end = OPENING.format(*rng.sample(cast, 2)), _fill(rng, CLOSING)
    if tokens < 20 * len(world.sentences):
        start = end = ""
    left = tokens - sum(map(count_tokens, (start, end, *world.sentences)))
    prose = []
    while left >= 4:
        pool = SHORT if left < 25 else DISTRACTORS if rng.random() < 0.15 else PROSE
        sentence = _fill(rng, rng.choice(pool), name=cast, thing=things, place=PLACES)
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


def _ask(
    rng: random.Random, world: World, cast: list[str], n: int, weights: dict[str, int]
) -> list[Question]:
    """Up to n different questions about a world."""
    received = [receiver for _, receiver in world.gifts.values()]
    once = [t for t, (_, receiver) in world.gifts.items() if received.count(receiver) == 1]
    placed, gifts = list(world.places), list(world.gifts)
    can = {"end": placed, "first": placed, "giver": gifts, "gift": once, "both": placed[1:]}
    kinds = [kind for kind, weight in weights.items() if can[kind] for _ in range(weight)]
    asked: dict[str, Question] = {}
    for _ in range(4 * n if kinds else 0):
        kind = rng.choice(kinds)
        if kind in ("giver", "gift"):
            thing = rng.choice(can[kind])
            giver, receiver = world.gifts[thing]
            keys, answer = ((thing, receiver), giver) if kind == "giver" else (
                (giver, receiver), f"the {thing}")
            others = cast if kind == "giver" else [f"the {t}" for t in (gifts + placed)]
        elif kind == "both":
            keys = tuple(rng.sample(placed, 2))
            answer = " and ".join(f"the {world.places[t][-1]}" for t in keys)
            others = [f"the {rng.choice(PLACES)} and the {rng.choice(PLACES)}" for _ in range(9)]
        else:
            keys = (rng.choice(placed),)
            answer = f"the {world.places[keys[0]][-1 if kind == 'end' else 0]}"
            seen = [f"the {place}" for stays in world.places.values() for place in stays]
            others = seen
        text = QUESTIONS[kind].format(*keys)
        if text not in asked:
            spare = cast if kind == "giver" else [f"the {place}" for place in rng.sample(PLACES, 4)]
            pool = sorted(set(others) - {answer})
            pool += sorted(set(spare) - {answer, *pool})[: max(0, 3 - len(pool))]
            options = [answer, *rng.sample(pool, 3)]
            rng.shuffle(options)
            asked[text] = Question(text, (answer,), tuple(options))
        if len(asked) == n:
            break
    return list(asked.values())


def _recap(rng: random.Random, world: World) -> str:
    """A few sentences that say where things ended and who gave what."""
    placed = rng.sample(list(world.places), min(3, len(world.places)))
    gifts = rng.sample(list(world.gifts), min(2, len(world.gifts)))
    told = [f"In the end the {thing} is at the {world.places[thing][-1]}." for thing in placed]
    return " ".join(
        told + ["{1} got the {0} from {2}.".format(t, *reversed(world.gifts[t])) for t in gifts]
    )


def _claim(rng: random.Random, world: World, things: set[str], n: int = 6) -> list[tuple[str, str]]:
    """n hypotheses about where things are at the end, the three labels in turn."""
    placed = list(world.places)
    strangers = [f"{a} {noun}" for a in ADJECTIVES for noun in NOUNS if f"{a} {noun}" not in things]
    claims = []
    for label in (LABELS * n)[:n]:
        thing = rng.choice(strangers if label == LABELS[2] else placed)
        place = world.places[thing][-1] if label == LABELS[0] else rng.choice(PLACES)
        while label == LABELS[1] and place == world.places[thing][-1]:
            place = rng.choice(PLACES)
        claims.append((CLAIM.format(thing, place), label))
    return claims


def compose(
    rng: random.Random,
    split: str,
    tokens: int,
    facts: int,
    questions: int = 16,
    still: bool = False,
) -> Story:
    """A story of at most `tokens` tokens with about `facts` facts, the rest prose."""
    cast = rng.sample(names(split), min(320, max(4, facts)))
    things = _things(rng, facts, still)
    world = World()
    while not world.places:
        world = _happen(rng, cast, things, facts, still)
    told = set(world.places) | set(world.gifts)
    text = _write(rng, world, cast, things, tokens)
    asked = tuple(_ask(rng, world, cast, questions, {"end": 1} if still else WEIGHTS))
    return Story(text, asked, _recap(rng, world), tuple(_claim(rng, world, told)))


def _random(*parts: object) -> random.Random:
    """The same stream on every machine for the same parts."""
    text = "/".join(map(str, (VERSION, *parts)))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def story(split: str, index: int, tokens: int, seed: int = 0) -> Story:
    """Story number `index` of a split: its text has at most `tokens` tokens, and nearly as many.

    Raises ValueError for an unknown split or fewer than 128 tokens.
    """
    if tokens < 128:
        raise ValueError(f"tokens is {tokens}; accepted: 128 and more")
    return compose(
        _random(split, seed, index, tokens), split, tokens, max(4, tokens // TOKENS_PER_FACT)
    )


def training_pair(
    index: int, seed: int, tokens: int, facts: int = 0, questions: int = 1, still: bool = False
) -> tuple[str, str, str]:
    """A question, a story and the answer, from the training split; the three together have about
    `tokens` tokens. Several questions end with their numbers, and their answers begin with them."""
    rng = _random("pair", seed, index, tokens, facts, questions)
    room = tokens - 2 - 16 * questions
    facts = facts or max(4, tokens // TOKENS_PER_FACT)
    told = compose(rng, "train", room, facts, questions, still)
    asked = told.questions
    if questions == 1:
        return asked[0].text, told.text, asked[0].answers[0]
    query = " ".join(f"{q.text[:-1]} {i}?" for i, q in enumerate(asked, 1))
    return query, told.text, " ".join(f"{i} {q.answers[0]}" for i, q in enumerate(asked, 1))
