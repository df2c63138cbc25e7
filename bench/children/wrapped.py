"""A method inside another that looks on: the ground of what counts, times or watches its calls."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from torch import Tensor

from methods.base import Call, Layer, Memory, Method, Sequence


@dataclass(frozen=True)
class Wrapped(Method):
    """A method that answers as the one inside does."""

    method: Method

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        return self.method.attend(query, key, value, call)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        return self.method.encode(layers, hidden, sequence)

    def encode_shorter(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        return self.method.encode_shorter(layers, hidden, sequence)

    def decodes(self) -> bool:
        return self.method.decodes()

    def memory(self) -> Memory | None:
        return self.method.memory()
