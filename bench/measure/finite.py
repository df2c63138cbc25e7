"""A method or model whose output isn't finite is an error with its layer named: NaN would give an
answer like any other, and a score of 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.errors import RunError
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from methods.base import AttentionCall, KVCache, Layer, SequenceInfo, Sublayer, Workload


class NotFiniteError(RunError):
    """NaN or infinity in a result: one line with who gave it, and in which layer."""


@contextmanager
def watched(family: Family) -> Iterator[None]:
    """Inside, each attention of the family's method, its walk over the layers and the logits of
    each next token are checked: one sum each. Raises NotFiniteError."""
    method = family.method
    family.method = FiniteWatcher(method, len(family.layers))
    head = getattr(family.model, "lm_head", None)
    hook = None
    if head is not None:
        hook = head.register_forward_hook(lambda _module, _inputs, logits: check_logits(logits))
    try:
        yield
    finally:
        family.method = method
        if hook is not None:
            hook.remove()


@dataclass(frozen=True)
class FiniteWatcher(Wrapped):
    """A method whose results for valid tokens must be finite; `layers` are those of the stack."""

    layers: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = super().attend(query, key, value, call)
        self.check_attention(out, (query, key, value), call)
        return out

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        out = super().mix(hidden, sublayer, call)
        if not sublayer.attended:
            self._check(out, (hidden,), call.sequence.valid, self._where(call))
        return out

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        self._check(out, (hidden,), sequence.valid, "in its walk over the layers")
        return out

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        out, shorter = super().encode_shorter(layers, hidden, sequence)
        self._check(out, (hidden,), shorter.valid, "in its walk over the layers")
        return out, shorter

    def kv_cache(self, workload: Workload) -> KVCache | None:
        cache = super().kv_cache(workload)
        return None if cache is None else _WatchedCache(cache, self)

    def check_attention(self, out: Tensor, given: Sequence[Tensor], call: AttentionCall) -> None:
        """out, and the queries, keys and values that were given: [B, H, n, d]."""
        tokens = [x.transpose(1, 2) for x in (out, *given)]
        self._check(tokens[0], tokens[1:], call.sequence.valid, self._where(call))

    def _where(self, call: AttentionCall) -> str:
        return f"in the attention of layer {call.layer + 1} of {self.layers}"

    def _check(
        self, out: Tensor, given: Sequence[Tensor], valid: Tensor | None, where: str
    ) -> None:
        found = not_finite(out, valid)
        if found is None:
            return
        name = f"method {type(self.method).__name__}"
        if any(not_finite(x, valid) for x in given):
            raise NotFiniteError(f"the model gave {name} {found} {where}")
        raise NotFiniteError(f"{name} gave {found} {where}")


@dataclass(frozen=True)
class _WatchedCache:
    """A method's cache while a model decodes, watched like the method."""

    cache: KVCache
    watcher: FiniteWatcher

    @property
    def read_bytes(self) -> int:
        return self.cache.read_bytes

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = self.cache.prefill(query, key, value, call)
        self.watcher.check_attention(out, (query, key, value), call)
        return out

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.cache.take(query, key, value, call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = self.cache.decode(query, key, value, call)
        self.watcher.check_attention(out, (query, key, value), call)
        return out

    def held(self) -> Sequence[Tensor]:
        return self.cache.held()


def not_finite(x: Tensor, valid: Tensor | None = None) -> str | None:
    """What tokens x [B, n, …] hold that isn't a finite number, in a word; None: nothing. With
    `valid` [B, n], padding may hold anything."""
    if bool(torch.isfinite(x.sum(dtype=torch.float32))):
        return None
    if valid is not None and valid.shape == x.shape[:2]:
        x = x[valid]
    if bool(x.isnan().any()):
        return "NaN"
    return "infinity" if bool(x.isinf().any()) else None


def check_logits(logits: Tensor) -> None:
    """Raises NotFiniteError for logits of the next token that aren't finite."""
    if found := not_finite(logits):
        raise NotFiniteError(f"the model gave {found} as logits of the next token")
