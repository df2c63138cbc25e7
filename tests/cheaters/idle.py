"""Never calls its own attention: hands back what it was given."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from torch import Tensor

from methods.base import Layer, Method, Sequence


@dataclass(frozen=True)
class Idle(Method):
    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        return hidden.clone()
