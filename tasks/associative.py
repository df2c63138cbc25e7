"""A needle that shares no word with the question, which asks for its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tasks.generated import Generated, Sample
from tasks.generators import associations


@dataclass(frozen=True)
class Associative(Generated):
    """Asks which of eight people a question fits; only generated rows."""

    def generate(self, rng: Random, split: str, length: int) -> Sample:
        return associations.needle(rng, split)
