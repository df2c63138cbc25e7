"""Training rows of the causal model: LongEval's records of lines, with several questions each."""

from __future__ import annotations

import itertools
import random
import re
from typing import NamedTuple

from tasks import longeval
from tasks.generators import seeds
from tasks.generators.line_names import line_names

STYLE = "LRT-NL"


class Question(NamedTuple):
    """One question and its answer. `text` precedes the answer: for a row's first question the whole
    prompt, for others only the question, or nothing if an answer continues. `source` is the index
    of the answer's first character in the first text. `closing` is the text after the answer; None
    is the end."""

    text: str
    answer: str
    source: int
    closing: str | None = None


def asked_lines(index: int, seed: int, lines: int, questions: int) -> list[Question]:
    """A record of the training split and questions about different lines of it."""
    rng = seeds.stream("line pair", seed, index, lines, questions)
    names = itertools.islice(line_names(STYLE, "train", rng, lines), lines)
    record, entries = longeval.LINES_HEADER, []
    for name in names:
        number = str(rng.randint(1, 50000))
        line = longeval.LINE.format(name, number)
        entries.append((name, number, len(record) + line.rindex(number)))
        record += line
    before = record + longeval.LINES_OVER
    asked = []
    for name, number, source in rng.sample(entries, min(questions, lines)):
        asked.append(Question(before + longeval.LINES_ASK.format(name), number, source))
        before = ""
    return asked


def vocabulary() -> tuple[list[str], list[str]]:
    """The words of all prompts, and the words that name a line."""
    prompt = longeval.LINES_HEADER + longeval.LINE + longeval.LINES_OVER + longeval.LINES_ASK
    names = {
        word
        for split in ("train", "validation", "test")
        for name in itertools.islice(line_names(STYLE, split, random.Random(0), None), 999)
        for word in name.split("-")
    }
    return sorted({*re.findall(r"\w+", prompt)} - names), sorted(names)
