"""Reads the whole input in some calls only, and one of its layers in others.

timed  in its first 12 calls and after its 40th
end    in its first 40 calls
skips  in all calls but every third after the 12th, which reads nothing at all
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo

CHECKED, LATE = 12, 40


@dataclass(frozen=True)
class Moody(Method):
    when: str = "timed"
    calls: list[int] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        self.calls.append(1)
        n = len(self.calls)
        if self.when == "skips":
            return (
                hidden.clone()
                if n > CHECKED and n % 3 == 0
                else super().encode(layers, hidden, sequence)
            )
        correct = n <= LATE if self.when == "end" else n <= CHECKED or n > LATE
        return super().encode(layers if correct else layers[:1], hidden, sequence)
