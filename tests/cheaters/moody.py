"""Knows a timing loop by the garbage collector, which is off in it, and there skips work.

timed  reads one layer in the loop
end    reads one layer from the loop on
skips  reads nothing in every third call of the loop
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Moody(Method):
    when: str = "timed"
    timed: list[int] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        timed = not gc.isenabled()
        if timed:
            self.timed.append(1)
        if self.when == "skips" and timed and len(self.timed) % 3 == 0:
            return hidden.clone()
        skips = bool(self.timed) if self.when == "end" else timed and self.when == "timed"
        return super().encode(layers[:1] if skips else layers, hidden, sequence)
