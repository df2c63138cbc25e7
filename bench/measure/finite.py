"""Output that isn't finite is an error that names the layer: otherwise NaN would give an answer
like any other, and a score of 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import ismethod
from weakref import WeakMethod

import torch
from torch import Tensor

from bench.errors import RunError
from bench.measure.side_effects import check_plain_tensor
from bench.models.attention import Attend
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from methods.base import AttentionCall, KVCache, Layer, SequenceInfo, Sublayer, Workload

HIDDEN = "the hidden states it was given"


class NotFiniteError(RunError):
    """NaN or infinity in a result: one line with its source and layer."""


Guard = Callable[[Sequence[Tensor], str], AbstractContextManager[None]]
"""Called with the input tensors of a part of a method, and their name."""


@contextmanager
def watched(family: Family, guard: Guard = lambda *_: nullcontext()) -> Iterator[None]:
    """Inside, each attention call of the family's method, its walk over the layers and the logits
    of each next token are checked by one sum each. Each part of the method runs inside the `guard`
    of its inputs. Raises NotFiniteError, IntegrityError."""
    method = family.method
    family.method = FiniteWatcher(method, len(family.layers), guard)
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
    """A method whose results for valid tokens must be finite; `layers` are the stack's layers."""

    layers: int = 0
    guard: Guard = lambda *_: nullcontext()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        given = [query, key, value, *tensors(call.sequence)]
        with self.guard(given, "a layer's queries, keys or values"):
            out = super().attend(query, key, value, call)
        self.check_attention(out, (query, key, value), call)
        return out

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        with self.guard([hidden], HIDDEN):
            out = super().mix(hidden, sublayer, call)
        if not sublayer.attended:
            self._check(out, (hidden,), call.sequence.valid, self._where(call))
        return out

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        with self.guard([hidden], HIDDEN):
            out = super().encode(layers, hidden, sequence)
        self._check(out, (hidden,), sequence.valid, "in its walk over the layers")
        return out

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        with self.guard([hidden], HIDDEN):
            out, shorter = super().encode_shorter(layers, hidden, sequence)
        self._check(out, (hidden,), shorter.valid, "in its walk over the layers")
        return out, shorter

    def kv_cache(self, workload: Workload) -> KVCache | None:
        """The method's cache, unwrapped, since models check its class and further attributes."""
        cache = super().kv_cache(workload)
        for name in () if cache is None else ("prefill", "decode"):
            setattr(cache, name, self._watched(getattr(cache, name)))
        return cache

    def _watched(self, attend: Attend) -> Attend:
        """The checked call of a cache's method, which the cache then holds. It refers to the cache
        weakly: in a reference cycle, the cache would be freed at the next garbage collection only.
        """
        weakly = WeakMethod(attend) if ismethod(attend) else lambda: attend

        def watched(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
            own = weakly()
            assert own is not None
            out: Tensor = own(query, key, value, call)
            self.check_attention(out, (query, key, value), call)
            return out

        return watched

    def check_attention(self, out: Tensor, given: Sequence[Tensor], call: AttentionCall) -> None:
        """out, and the queries, keys and values that were given: [B, H, n, d]."""
        check_plain_tensor(out)
        tokens = [x.transpose(1, 2) for x in (out, *given)]
        self._check(tokens[0], tokens[1:], call.sequence.valid, self._where(call))

    def _where(self, call: AttentionCall) -> str:
        return f"in the attention of layer {call.layer + 1} of {self.layers}"

    def _check(
        self, out: Tensor, given: Sequence[Tensor], valid: Tensor | None, where: str
    ) -> None:
        check_plain_tensor(out)
        found = not_finite(out, valid)
        if found is None:
            return
        name = f"method {type(self.method).__name__}"
        if any(not_finite(x, valid) for x in given):
            raise NotFiniteError(f"the model gave {name} {found} {where}")
        raise NotFiniteError(f"{name} gave {found} {where}")


def tensors(sequence: SequenceInfo) -> list[Tensor]:
    found = (sequence.positions, sequence.valid, sequence.vip, sequence.log_multiplicity)
    return [x for x in found if x is not None]


def not_finite(x: Tensor, valid: Tensor | None = None) -> str | None:
    """The kind of values in tokens x [B, n, …] that aren't finite, as text; None if all are finite.
    With `valid` [B, n], padding may hold anything."""
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
