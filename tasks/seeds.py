"""Random streams that are the same on every machine."""

from __future__ import annotations

import hashlib
import random


def stream(*parts: object) -> random.Random:
    """The random stream of these parts, such as a generator's name, split, seed and index."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
