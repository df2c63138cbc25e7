"""The samples of RULER (Hsieh et al., 2024, arXiv:2404.06654), after scripts/data/synthetic of its
repository. Differences that keep every sample answerable: keys and names are distinct, answers
occur once, positions are drawn again in each sample, frequent words have falling counts.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from random import Random

from tasks.generated import Question, Sample
from tasks.generators import filler, line_names, story_words

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
ANNOUNCED = (
    "{Some} special magic {kind} {are} hidden within the following text. Make sure to memorize "
    "it. I will quiz you about the {kind} afterwards.\n"
)
ASKED = "\nWhat {are} {all}the special magic {kind} for {keys} mentioned in the provided text?"
PREFIX = " The special magic {kind} for {keys} mentioned in the provided text {are}"
DEPTHS = [100 * i / 39 for i in range(40)]


@dataclass(frozen=True)
class Needles:
    """A needle task: the haystack (noise, prose, or only needles), and the number of needles."""

    haystack: str
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def most_turns(self) -> int:
        """The number of questions, each for another key, that one text can answer."""
        if self.queries > 1 or self.values > 1:
            return 1
        return len(DEPTHS) if self.haystack == "needles" else self.keys


NIAH = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles("prose"),
    "niah_single_3": Needles("prose", value="uuids"),
    "niah_multikey_1": Needles("prose", keys=4),
    "niah_multikey_2": Needles("needles"),
    "niah_multikey_3": Needles("needles", key="uuids", value="uuids"),
    "niah_multivalue": Needles("prose", values=4),
    "niah_multiquery": Needles("prose", keys=4, queries=4),
}


def needles(
    kind: Needles, rng: Random, split: str, turns: int = 1, sentences: Sequence[str] = ()
) -> Sample:
    """niah_*: values of one or several keys are to be found. Each of several turns asks for other
    keys; a haystack of needles hides that many too. Prose consists of the `sentences`, if any are
    given, from the first on and repeated when they run out."""
    words = line_names.line_names("LRT-NL", split, rng, None)
    draw = {
        "words": lambda: next(words),
        "numbers": lambda: filler.number(rng),
        "uuids": lambda: filler.identifier(rng),
    }
    keys = filler.different(draw[kind.key], set())
    values = filler.different(draw[kind.value], set())

    def needle(key: str, value: str) -> str:
        return NEEDLE.format(kind=kind.value, key=key, value=value)

    hidden = {key: list(islice(values, kind.values)) for key in islice(keys, max(kind.keys, turns))}
    asked = rng.sample(list(hidden), kind.queries)
    later = [key for key in hidden if key not in asked][: turns - 1]
    answers = tuple(value for key in asked for value in hidden[key])
    facts = [needle(key, value) for key, given in hidden.items() for value in given]
    rng.shuffle(facts)
    one = len(answers) == 1
    words_of = {
        "kind": kind.value[:-1] if one else kind.value,
        "Some": "A" if one else "Some",
        "are": "is" if one else "are",
        "all": "" if one else "all ",
    }

    def question(keys: Sequence[str]) -> Question:
        words = {**words_of, "keys": _listed(keys)}
        found = tuple(value for key in keys for value in hidden[key])
        return Question(ASKED.format(**words), found, PREFIX.format(**words))

    if kind.haystack == "noise":
        lines, between = filler.Endless(lambda: filler.NOISE), "\n"
    elif kind.haystack == "prose" and sentences:
        lines, between = filler.Endless(cycle(sentences).__next__), " "
    elif kind.haystack == "prose":
        lines, between = filler.prose(rng), " "
    else:
        lines, between = filler.Endless(lambda: needle(next(keys), next(values))), "\n"
    depths = sorted(rng.sample(DEPTHS, len(facts)))

    def document(units: int) -> str:
        text = lines.first(units)
        places = [round(len(text) * depth / 100) for depth in depths]
        for place, fact in reversed(list(zip(places, facts, strict=True))):
            text.insert(place, fact)
        return ANNOUNCED.format(**words_of) + between.join(text)

    first = question(asked)
    further = tuple(question([key]) for key in later)
    return Sample(document, first.query, first.answers, first.ending, further=further)


def _listed(items: Sequence[str]) -> str:
    """a, b, and c"""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join([*items[:-1], f"and {items[-1]}"])


def variable_tracking(rng: Random, hops: int = 4) -> Sample:
    """vt: all variables to which a value was passed on, after a solved example."""
    taken: set[str] = set()

    def chain(letters: int) -> tuple[list[str], str]:
        names = filler.different(
            lambda: "".join(rng.sample(string.ascii_uppercase, letters)), taken
        )
        return list(islice(names, hops + 1)), filler.number(rng, 5)

    def written(chained: tuple[list[str], str], lines: int) -> tuple[str, str, str]:
        """The chain among lines of noise, its question, and the beginning of the answer."""
        variables, value = chained
        facts = [f"VAR {variables[0]} = {value}"]
        facts += [f"VAR {b} = VAR {a}" for a, b in pairwise(variables)]
        places = sorted(at % (lines + 1) for at in order)
        text = [filler.NOISE] * lines
        for place, fact in reversed(list(zip(places, facts, strict=True))):
            text.insert(place, fact)
        question = (
            f"\nQuestion: Find all variables that are assigned the value {value} in the text above."
        )
        prefix = (
            " Answer: According to the chain(s) of variable assignment in the text above, "
            f"{len(variables)} variables are assigned the value {value}, they are:"
        )
        return "\n".join(text), question, prefix

    order = [rng.getrandbits(32) for _ in range(hops + 1)]
    intro = (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    )
    example, asked = chain(3), chain(5)
    text, question, prefix = written(example, 4)
    shown = f"{intro}{text}{question}{prefix} {' '.join(example[0])}\n\n"

    def document(units: int) -> str:
        return shown + intro + written(asked, units)[0]

    _, question, prefix = written(asked, 1)
    return Sample(document, question, tuple(asked[0]), prefix)


def _coded(rng: Random) -> Callable[[], str]:
    return lambda: "".join(rng.choice(string.ascii_lowercase) for _ in range(6))


def common_words(rng: Random, length: int) -> Sample:
    """cwe: the ten most frequent words of a list, after a solved example. Below 4,096 tokens common
    words occur 6 times and the others once, from there on 30 and 3 times."""
    long = length >= 4096
    times, other, size, shown_times, shown_other = (30, 3, 40, 10, 3) if long else (6, 1, 20, 3, 1)
    words = filler.Endless(_distinct_words(rng).__next__)
    common = words.first(20)  # ten for the example and ten for the question
    intro = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n"
    )
    question = "\nQuestion: What are the 10 most common words in the above list?"
    prefix = " Answer: The top 10 words that appear most often in the list are:"

    def numbered(often: Sequence[str], n: int, rare: Sequence[str], m: int, order: Random) -> str:
        items = [word for word in often for _ in range(n)]
        items += [word for word in rare for _ in range(m)]
        order.shuffle(items)
        return intro + " ".join(f"{i}. {word}" for i, word in enumerate(items, start=1))

    state = rng.random()
    rare = words.first(20 + size - 10)[20:]
    example = numbered(common[:10], shown_times, rare, shown_other, Random(f"{state} example"))
    answered = " ".join(f"{i}. {word}" for i, word in enumerate(common[:10], start=1))
    shown = f"{example}{question}{prefix} {answered}\n"

    def document(units: int) -> str:
        others = words.first(20 + size - 10 + units)[20 + size - 10 :]
        return shown + numbered(common[10:], times, others, other, Random(str(state)))

    return Sample(document, question, tuple(common[10:]), prefix)


def _distinct_words(rng: Random) -> Iterator[str]:
    """Words of the project's lists, once each, then invented words."""
    plain = [*story_words.NOUNS, *story_words.ADJECTIVES, *story_words.PLACE_NAMES,
             *story_words.PLACE_NOUNS]  # fmt: skip
    plain += [word for words in story_words.SLOTS.values() for word in words]
    pool = list(dict.fromkeys(plain))
    rng.shuffle(pool)
    yield from pool
    yield from filler.different(_coded(rng), set(pool))


LEAST_FREQUENT = 80
"""Words from which on the counts of ranks 2 to 5 fall, so that the answer is unique."""


def frequent_words(rng: Random) -> Sample:
    """fwe: the three most frequent coded words except the very first, which is noise. Rank k occurs
    N / (k² zeta(2)) times."""
    zeta = math.pi**2 / 6
    coined = filler.Endless(filler.different(_coded(rng), set()).__next__)
    intro = (
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. "
    )
    state = rng.random()

    def document(units: int) -> str:
        total = LEAST_FREQUENT + 5 * units
        counts = [int(total * rank**-2 / zeta) for rank in range(1, total)]
        counts = [count for count in counts if count]
        words = ["...", *coined.first(len(counts) - 1)]
        text = [word for word, n in zip(words, counts, strict=True) for _ in range(n)]
        Random(str(state)).shuffle(text)
        return intro + " ".join(text)

    question = (
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text?"
    )
    prefix = (
        " Answer: According to the coded text above, the three most frequently appeared words are:"
    )
    return Sample(document, question, tuple(coined.first(3)), prefix)
