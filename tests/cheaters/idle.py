"""Never calls its own attention: returns a copy of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Idle(Method):
    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return hidden.clone()
