"""LRA's embedded rows: generated in the layouts of the benchmark, endlessly, from a split, a length
and a seed. Splits are drawn from streams of their own.

ListOps and Pathfinder have generators in their own modules. Here are reviews whose words are
balanced, so that only their combination tells the sentiment; pairs of papers that are related or
not; and grey images of ten shapes and textures.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from tasks.lra_files import Found
from tasks.seeds import stream

VERSION = 1

# --- reviews ----------------------------------------------------------------------------------

GOOD = "brilliant moving sharp funny gripping tender clever warm elegant honest".split()
BAD = "dull clumsy shallow tedious lazy hollow stiff muddled cold predictable".split()
ASPECTS = "acting|plot|dialogue|camera work|music|ending|editing|lead role|first half|humour".split(
    "|"
)
# {w} is a word of the sentiment that is meant, {o} one of the opposite.
OPINIONS = (
    "The {a} was {w}.",
    "I found the {a} truly {w}.",
    "The {a} was not {o} at all.",
    "Nobody could call the {a} {o}.",
    "I had been told that the {a} was {o}, and it is nothing of the kind.",
    "The {a} seems {o} at first, but it turns out {w}.",
    "Where others saw a {o} {a}, I saw a {w} one.",
    "The {a} may be {w}, and never {o}.",
    "It would be wrong to say that the {a} is anything but {w}.",
)
PLAIN = 2
"""The first of them name the word that is meant, and nothing else."""
SCENES = (
    "The story begins in {p} on a rainy evening.",
    "A {j} comes home to {p} after many years.",
    "Half of it was filmed in {p}, as one can see.",
    "The {j} has a secret that the others guess slowly.",
    "I watched it with my {k} in a small cinema.",
    "There is a long scene in a kitchen, and another on a train to {p}.",
    "My {k} had read the novel before.",
    "It runs for about {n} minutes.",
)
PLACES = "Lisbon Oslo Tbilisi Dakar Quito Hanoi Leeds Graz Perth Busan".split()
JOBS = "teacher sailor painter lawyer baker nurse pilot farmer widow clerk".split()
KIN = "brother sister uncle neighbour daughter friend cousin mother".split()


def review(rng: random.Random, positive: bool, room: int, plain: float = 0.0) -> str:
    """A review of at most `room` bytes. Most of its opinions agree with the label, wherever it is
    cut; each names the word that is meant, its opposite or both, as often for either label. A share
    `plain` of them agrees and names the word that is meant alone."""
    sentences: list[str] = []
    size, lead = 0, 0
    while True:
        number = len(sentences)
        if number % 3 == 0:
            told = plain > 0 and rng.random() < plain
            agrees = told or lead < 2 or rng.random() < 0.6
            lead += 1 if agrees else -1
            words, others = (GOOD, BAD) if positive == agrees else (BAD, GOOD)
            made = rng.choice(OPINIONS[:PLAIN] if told else OPINIONS).format(
                a=rng.choice(ASPECTS), w=rng.choice(words), o=rng.choice(others)
            )
        else:
            made = rng.choice(SCENES).format(
                p=rng.choice(PLACES), j=rng.choice(JOBS), k=rng.choice(KIN), n=rng.randint(80, 170)
            )
        # The official reviews keep their line breaks as tags.
        made += "<br /><br />" if number % 7 == 6 else " "
        size += len(made)
        if sentences and size > room:
            return "".join(sentences).rstrip()
        sentences.append(made)


def text(task: Any, split: str, length: int, seed: int) -> Iterator[Found]:
    for index in count():
        rng = stream("lra review", VERSION, split, seed, index)
        positive = rng.random() < 0.5
        found = review(rng, positive, int(length * rng.uniform(0.6, 1)), task.plain)
        yield Found(f"review {index}", int(positive), found)


# --- pairs of papers --------------------------------------------------------------------------

FIELDS = {
    "parsing": "grammar treebank chart constituent dependency shift-reduce head projectivity",
    "translation": "alignment phrase decoder bilingual reordering hypothesis source target",
    "summarization": "sentence abstract compression salience redundancy headline extract cluster",
    "speech": "phoneme acoustic recognizer lattice prosody utterance speaker pitch",
    "sentiment": "opinion polarity review subjectivity lexicon emotion rating stance",
    "dialogue": "turn user intent slot response belief policy act",
    "morphology": "stem affix inflection paradigm suffix lemma segmentation analyser",
    "coreference": "mention antecedent pronoun entity anaphora chain salient binding",
    "retrieval": "query ranking relevance index passage term feedback collection",
    "semantics": "predicate role frame argument sense disambiguation entailment logic",
    "generation": "realiser template planner surface referring microplanning lexicalisation text",
    "tagging": "label transition emission tagset ambiguity context suffixes unknown",
}
TEMPLATES = (
    "We study {x} and {y} for {f}.",
    "Our model of {x} uses a {y} that is learned from data.",
    "Previous work treats the {x} apart from the {y}.",
    "Table {n} gives the results for each {x}.",
    "Errors are due to the {x} in {n} of 100 cases.",
    "We follow the setting of earlier work, where a {y} is given for every {x}.",
    "The {x} is computed before the {y} is known.",
    "This raises accuracy by {n} points over the baseline.",
    "All experiments were run {n} times, and the mean is reported.",
)


def paper(rng: random.Random, field: str, room: int) -> str:
    """The text of a paper in a field, at most `room` bytes."""
    terms = FIELDS[field].split()
    sentences: list[str] = []
    size = -1
    while True:
        # Every third sentence borrows from another field, as papers do.
        words = terms if rng.random() < 0.67 else FIELDS[rng.choice(sorted(FIELDS))].split()
        x, y = rng.sample(words, 2)
        made = rng.choice(TEMPLATES).format(x=x, y=y, f=field, n=rng.randint(2, 60))
        size += len(made) + 1
        if sentences and size > room:
            return " ".join(sentences)
        sentences.append(made)


def retrieval(task: Any, split: str, length: int, seed: int) -> Iterator[Found]:
    for index in count():
        rng = stream("lra papers", VERSION, split, seed, index)
        related = rng.random() < 0.5
        first, other = rng.sample(sorted(FIELDS), 2)
        texts = [
            paper(rng, field, int(length * rng.uniform(0.6, 1)))
            for field in (first, first if related else other)
        ]
        yield Found(f"pair {index}", int(related), texts[0], texts[1])


# --- images -----------------------------------------------------------------------------------

SHAPES = "disc ring square frame triangle cross stripes diagonal checks dots".split()


def picture(rng: random.Random, shape: str) -> Any:
    """A noisy grey image uint8 [32, 32] of a shape or texture somewhere in it."""
    import numpy as np

    y, x = np.mgrid[:32, :32].astype(float)
    cy, cx, reach = rng.uniform(11, 21), rng.uniform(11, 21), rng.uniform(6, 10)
    dy, dx = y - cy, x - cx
    far, box = np.hypot(dy, dx), np.maximum(abs(dy), abs(dx))
    step, phase = rng.uniform(4, 8), rng.uniform(0, 8)
    waves = np.sin((y + phase) * 2 * np.pi / step), np.sin((x + phase) * 2 * np.pi / step)
    inside = {
        "disc": far < reach,
        "ring": abs(far - reach) < 1.8,
        "square": box < reach * 0.8,
        "frame": abs(box - reach) < 1.5,
        "triangle": (dy < reach * 0.7) & (dy > 2 * abs(dx) - reach),
        "cross": (np.minimum(abs(dy), abs(dx)) < 2) & (box < reach),
        "stripes": waves[rng.randrange(2)] > 0,
        "diagonal": np.sin((x + rng.choice((-1, 1)) * y + phase) * 2 * np.pi / step / 1.4) > 0,
        "checks": waves[0] * waves[1] > 0,
        "dots": (waves[0] > 0.5) & (waves[1] > 0.5),
    }[shape]
    low, high = rng.uniform(20, 110), rng.uniform(140, 235)
    if rng.random() < 0.5:
        low, high = high, low
    noise = np.random.default_rng(rng.getrandbits(64)).normal(0, 18, (32, 32))
    return np.rint(np.where(inside, high, low) + noise).clip(0, 255).astype(np.uint8)


def fitted(pixels: Any, length: int, how: str) -> Any:
    """A square image uint8, halved until it has at most `length` pixels: each is then the mean, or
    the max, of four."""
    while pixels.size > length:
        side = len(pixels) // 2
        pixels = getattr(pixels.reshape(side, 2, side, 2), how)((1, 3)).astype("uint8")
    return pixels


def image(task: Any, split: str, length: int, seed: int) -> Iterator[Found]:
    from tasks.lra_files import enlarged

    for index in count():
        rng = stream("lra image", VERSION, split, seed, index)
        label = rng.randrange(len(SHAPES))
        pixels = picture(rng, SHAPES[label])
        pixels = pixels if task.size == 32 else enlarged(pixels, task.size)
        pixels = fitted(pixels, length, "mean")
        yield Found(f"image {index}", label, pixels.tobytes().decode("latin-1"))


# --- generators of their own ------------------------------------------------------------------


def listops(task: Any, split: str, length: int, seed: int) -> Iterator[Found]:
    """LRA's trees where they fit into `length`; shorter ones of the same grammar where not."""
    from tasks.listops import Grammar, rows

    longest = min(task.max_length, length + 1)
    grammar = replace(Grammar(), min_length=min(500, longest // 4), max_length=longest)
    for index, (source, label) in enumerate(rows(grammar, seed, split)):
        yield Found(f"tree {index}", label, source)


def pathfinder(task: Any, split: str, length: int, seed: int) -> Iterator[Found]:
    from tasks.pathfinder import images

    found = images(task.size, seed, split, contour=task.contour, short=task.distractors)
    for index, made in enumerate(found):
        # A dash is a pixel thin: a mean would wipe it out.
        pixels = fitted(made.pixels, length, "max")
        yield Found(f"image {index}", made.label, pixels.tobytes().decode("latin-1"))


MAKERS: dict[str, Callable[[Any, str, int, int], Iterator[Found]]] = {
    "listops": listops, "text": text, "retrieval": retrieval,
    "image": image, "pathfinder": pathfinder,
}  # fmt: skip
