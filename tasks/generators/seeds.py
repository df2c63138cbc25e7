"""Random streams and splits that are the same on every machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence

SPLITS = ("train", "validation", "test")
_PARTS = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}


def stream(*parts: object) -> random.Random:
    """The random stream of these parts, such as a generator's name, split, seed and index."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def in_split(split: str, first: Iterable[str], second: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs of a first and a second part that belong to a split: three fifths of them in train,
    one fifth each in validation and test, with every part in every split."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; accepted: {', '.join(SPLITS)}")
    return (
        (a, b)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        if (i + 2 * j) % 5 in _PARTS[split]
    )
