"""Training rows of the causal model whose answer is a list: RULER's tasks of several keys or
values, of frequent words and of chains of variables, each with the prompt of its task."""

from __future__ import annotations

import re
from random import Random

from tasks.generated import Sample
from tasks.generators import ruler, seeds
from tools.embedded.rows.line_pairs import Question

MORE = ","
"""Text after an item that is followed by another, in place of the end."""
UNIT_TOKENS = {
    "niah_multivalue": (150, 14), "niah_multiquery": (200, 14), "niah_multikey_3": (150, 90),
    "vt": (520, 25), "cwe": (740, 5), "fwe": (420, 24),
}  # fmt: skip
"""Approximate tokens of a prompt without units, and of one unit."""
LISTS = tuple(UNIT_TOKENS)


def asked_list(kind: str, index: int, seed: int, tokens: int) -> list[Question]:
    """The only question about a text of about `tokens` tokens, in the parts of its answer."""
    rng = seeds.stream("list pair", kind, seed, index, tokens)
    before, unit = UNIT_TOKENS[kind]
    sample = _sample(kind, rng, tokens)
    document = sample.document(max(1, (tokens - before) // unit))
    prompt = document + sample.query + sample.ending
    if kind.startswith("niah"):
        parts = _needles(prompt, sample)
    else:
        parts = _words(kind, rng, document, sample)
    return [Question(prompt if not i else "", *part) for i, part in enumerate(parts)]


def _sample(kind: str, rng: Random, tokens: int) -> Sample:
    if kind in ruler.NIAH:
        return ruler.needles(ruler.NIAH[kind], rng, "train")
    if kind == "vt":
        return ruler.variable_tracking(rng)
    return ruler.common_words(rng, tokens) if kind == "cwe" else ruler.frequent_words(rng)


def _needles(prompt: str, sample: Sample) -> list[tuple[str, int, str | None]]:
    """The items of an answer: a single value alone, several values each after its key, as in a
    needle."""
    if len(sample.answers) == 1:
        (value,) = sample.answers
        return [(f" {value}", prompt.index(f" {value}."), None)]
    listed = prompt.rindex("numbers for ")
    parts: list[tuple[str, int, str | None]] = []
    for value in sample.answers:
        at = prompt.index(f" is: {value}.")
        key = re.findall(r"\S+", prompt[:at])[-1]
        last = value == sample.answers[-1]
        parts.append((f" {key}", prompt.index(f" {key}", listed), ""))
        parts.append((f" is: {value}", at, None if last else MORE))
    return parts


def _words(
    kind: str, rng: Random, document: str, sample: Sample
) -> list[tuple[str, int, str | None]]:
    """Consecutive words, each copied from one of its places in the text. A variable is copied from
    the place where it gets its value."""
    parts: list[tuple[str, int, str | None]] = []
    for word in sample.answers:
        before = "VAR" if kind == "vt" else ""
        after = r" =" if kind == "vt" else r"(?!\w)"
        places = [m.start() for m in re.finditer(f"(?<={before}) {word}{after}", document)]
        parts.append((f" {word}", rng.choice(places), None if word == sample.answers[-1] else ""))
    return parts
