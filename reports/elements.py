"""What a document is made of, for any format to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Code(str):
    """Text of a terminal."""


@dataclass(frozen=True)
class Heading:
    text: str
    level: int


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    """Lines of text; of a pair, the second is what the first names."""

    items: Sequence[str | tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """Columns of text; `numbers` are those to set right. `verdicts` has one for each line, or
    nothing; `faint` are the lines that say little."""

    caption: str
    head: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()
    verdicts: tuple[str, ...] = ()
    faint: frozenset[int] = frozenset()


Element = Heading | Paragraph | Items | Grid


def plain(text: str) -> str:
    """Text on one line, without what can't be seen: control codes, turned writing directions."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
