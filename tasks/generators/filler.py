"""Filler between the facts of generated prompts. A prompt takes the first units of an endless list,
so that a prompt with one more unit is otherwise the same."""

from __future__ import annotations

import functools
import string
import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeVar

from tasks.generators import story_words

T = TypeVar("T")

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""RULER's and InfiniteBench's line of noise."""


class Endless:
    """The first items of a random stream, drawn once and kept."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw, self._drawn = draw, list[str]()

    def first(self, n: int) -> list[str]:
        while len(self._drawn) < n:
            self._drawn.append(self._draw())
        return self._drawn[:n]


def prose(rng: Random) -> Endless:
    """Sentences of plain prose without people, things or places."""
    choice, templates = rng.choice, _templates()

    def sentence() -> str:
        parts = choice(templates)
        return "".join([part if isinstance(part, str) else choice(part) for part in parts])

    return Endless(sentence)


@functools.cache
def _templates() -> list[list[str | list[str]]]:
    """The sentences of prose without names, in parts: a text, or words of which one is chosen. They
    are cached, since a thousand prompts draw from them 300,000 times."""
    return [
        [
            part
            for text, slot, _, _ in string.Formatter().parse(template)
            for part in (text, *([story_words.SLOTS[slot]] if slot else ()))
        ]
        for template in story_words.PROSE
        if "{name}" not in template
    ]


def number(rng: Random, digits: int = 7) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def identifier(rng: Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def different(draw: Callable[[], T], taken: set[T]) -> Iterator[T]:
    """Endless distinct draws that aren't in `taken`, to which they are added."""
    while True:
        if (item := draw()) not in taken:
            taken.add(item)
            yield item
