"""A wrapper around a method: the base class of what counts, times or records its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from methods.base import AttentionCall, DecodingState, Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Wrapped(Method):
    """Delegates to the method inside."""

    method: Method

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self.method.attend(query, key, value, call)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return self.method.encode(layers, hidden, sequence)

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return self.method.encode_shorter(layers, hidden, sequence)

    def decodes(self) -> bool:
        return self.method.decodes()

    def decoding_state(self) -> DecodingState | None:
        return self.method.decoding_state()
