"""Filler between the facts of generated prompts: endless lists, of which a prompt takes the first
units, so that one that is a unit longer is otherwise the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeVar

from tasks.generators import stories, story_words

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


def prose(rng: Random, split: str) -> Endless:
    """Sentences of plain prose without people, things or places."""
    names = stories.names(split)
    templates = [one for one in story_words.PROSE if "{name}" not in one]
    return Endless(lambda: stories.fill(rng, rng.choice(templates), name=names))


def number(rng: Random, digits: int = 7) -> str:
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def identifier(rng: Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def different(draw: Callable[[], T], taken: set[T]) -> Iterator[T]:
    """Endless draws, each once and none of `taken`, which grows."""
    while True:
        if (item := draw()) not in taken:
            taken.add(item)
            yield item
