"""The cache of a method that keeps every token in its own kind of `Entries`, which store them in
another format or read a part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from methods.base import AttentionCall, Workload
from methods.parts.kv_cache import BLOCK, Entries


class HasEntries(Protocol):
    """The interface of a method for this cache."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor: ...

    def entries(
        self, key: Tensor, value: Tensor, call: AttentionCall, workload: Workload
    ) -> Entries:
        """The entries of one layer of a prompt, keys and values [B, G, n, d]."""
        ...


@dataclass
class EntriesCache:
    """Keeps every token; in a layer with a window, the tokens within reach.

    at_once  several new tokens at once are read as if each came alone
    """

    at_once: ClassVar[bool] = True
    method: HasEntries
    workload: Workload
    layers: dict[int, Entries] = field(default_factory=dict)
    read_bytes: int = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.layers[call.layer] = self.method.entries(key, value, call, self.workload)
        self._leave_window(call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self._leave_window(call)
        entries = self.layers[call.layer]
        entries.append(key, value)
        self.read_bytes += entries.bytes()
        return entries.attend(query, call)

    def held(self) -> Sequence[Tensor]:
        return [part for entries in self.layers.values() for part in entries.held()]

    def _leave_window(self, call: AttentionCall) -> None:
        """Frees the tokens that no later query reaches, a block at a time."""
        entries = self.layers[call.layer]
        if call.window is not None and entries.size >= call.window + BLOCK:
            entries.keep_last(call.window)
