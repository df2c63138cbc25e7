"""A wrapper around a method: the base class of wrappers that count, time or record its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from methods.base import (
    AttentionCall,
    KVCache,
    Layer,
    Method,
    OwnParameter,
    SequenceInfo,
    Sublayer,
    Workload,
)


@dataclass(frozen=True)
class Wrapped(Method):
    """Delegates to the method inside."""

    method: Method

    @property
    def reads_modules(self) -> bool:  # type: ignore[override]
        return self.method.reads_modules

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self.method.attend(query, key, value, call)

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        return self.method.mix(hidden, sublayer, call)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return self.method.encode(layers, hidden, sequence)

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return self.method.encode_shorter(layers, hidden, sequence)

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        return self.method.own_parameters(workload, layer)

    def kv_cache(self, workload: Workload) -> KVCache | None:
        return self.method.kv_cache(workload)


def unwrapped(method: Method) -> Method:
    """The method inside all wrappers."""
    while isinstance(method, Wrapped):
        method = method.method
    return method
