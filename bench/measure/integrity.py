"""Checks that a method must pass before its numbers count.

A failed check ends the cell with status `error` and the reason. docs/trust.md lists the checks, and
the violations that they cannot detect from within the method's own process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from inspect import ismethod
from typing import Any, NoReturn
from weakref import WeakMethod

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from bench.errors import RunError
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.attention import Attend
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from methods.base import AttentionCall, KVCache, Layer, SequenceInfo, Sublayer, Workload

CHANGED_FRAC = 1e-3
"""Relative to the output's norm; perturbed inputs change nearly all of a correct output."""
PROJECTIONS = 64


class IntegrityError(Exception):
    """A method failed a check."""


_failures: list[str] = []


def fail_check(reason: str) -> NoReturn:
    """Raises IntegrityError and records it, since a method may catch errors raised below it."""
    _failures.append(f"integrity check failed: {reason}")
    raise IntegrityError(_failures[-1])


def raise_recorded() -> None:
    """Raises the first IntegrityError that was raised earlier and caught by the method."""
    if _failures:
        raise IntegrityError(_failures[0])


def check_plain_tensor(output: Any) -> None:
    """Raises IntegrityError for a tensor subclass, which may defer its computation."""
    if type(output) is not Tensor:
        fail_check(
            f"returns a {type(output).__name__}, which may compute later, instead of a plain tensor"
        )


@contextmanager
def rechecked(family: Family) -> Iterator[None]:
    """At the end of the block, sets the family's method again and raises IntegrityError if it has
    changed weights."""
    method, weights = family.method, _weight_sums(family)
    family.calls = 0
    yield
    family.method = method
    if weights != _weight_sums(family):
        fail_check("changes the model's weights")


def check_method(family: Family, inputs: PerturbedInputs) -> None:
    """Raises IntegrityError for a method that never calls its own attention, changes its input,
    answers from a cache, or leaves work to another thread, and NotFiniteError for an output that
    isn't finite."""
    ids, sequence = inputs.perturbed(0)
    given = [ids, *tensors(sequence)]
    with watched(family, unchanged), unchanged(given, "the token ids or their masks"):
        first = family.encode(ids, sequence)
    check_attention_ran(family)
    check_plain_tensor(first)
    if found := not_finite(first, sequence.valid):
        raise NotFiniteError(f"the model's last hidden states hold {found}")
    check_python_threads()
    check_processes()
    first_copy, other = first.clone(), family.encode(*inputs.perturbed(0))  # at the same address
    if not torch.equal(first, first_copy):
        fail_check("returns a cached output: one call's tensor is overwritten by the next")
    if other.shape == first.shape and bool(
        (first_copy - other).float().norm() <= CHANGED_FRAC * first_copy.float().norm()
    ):
        fail_check("returns a cached output: another input gave the same")
    raise_recorded()


def check_attention_ran(family: Family, before: int = 0) -> None:
    """Raises IntegrityError when the method hasn't been called since `calls` was `before`."""
    if family.calls <= before:
        fail_check("never calls its own attention: the model ignores the method")


def projected(logits: Tensor) -> list[float]:
    """Random projections of all logits, the same ones for each tensor of this size: two answers
    differ about as much as their projections."""
    logits = logits.float().flatten().cpu()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (PROJECTIONS, len(logits)), generator=generator) * 2.0 - 1
    return [float(x) for x in signs @ logits / PROJECTIONS**0.5]


def _weight_sums(family: Family) -> list[float]:
    return [float(weight.float().sum()) for weight in family.model.parameters()]


@contextmanager
def unchanged(given: Sequence[Tensor], name: str) -> Iterator[None]:
    """Raises IntegrityError at the end of the block if it has changed the `given` tensors."""
    before = [x.clone() for x in given]
    yield
    if not all(torch.equal(a, b) for a, b in zip(before, given, strict=True)):
        fail_check(f"changes its input in place: {name}")


# Output that isn't finite is an error that names the layer: otherwise NaN would give an answer like
# any other, and a score of 0.

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


# Global state of torch that changes the speed of later calls: it is restored and named in the row.

_sdpa: Any = torch.backends.cuda
_DENORMAL = 5e-324


def _leave_modes(before: tuple[int, int]) -> None:
    while torch._C._len_torch_function_stack() > before[0]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > before[1]:
        torch._C._pop_torch_dispatch_stack(None)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's threads": (torch.get_num_threads, torch.set_num_threads),
    "the processor affinity": (
        lambda: os.sched_getaffinity(0), lambda cpus: os.sched_setaffinity(0, cpus),
    ),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (torch.get_default_device, torch.set_default_device),
    "deterministic algorithms": (
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode,
    ),
    "the precision of matrix products": (
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
    ),
    "flushing of denormals": (lambda: _DENORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    "oneDNN": _attribute(torch.backends.mkldnn, "enabled"),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "flash attention": (_sdpa.flash_sdp_enabled, _sdpa.enable_flash_sdp),
    "memory-efficient attention": (_sdpa.mem_efficient_sdp_enabled, _sdpa.enable_mem_efficient_sdp),
    "unfused attention": (_sdpa.math_sdp_enabled, _sdpa.enable_math_sdp),
    "cuDNN's attention": (_sdpa.cudnn_sdp_enabled, _sdpa.enable_cudnn_sdp),
    "torch's function or dispatch modes": (
        lambda: (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        _leave_modes,
    ),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch's attention function": _attribute(functional, "scaled_dot_product_attention"),
}  # fmt: skip
"""Name → functions that read it and set it."""


def global_state() -> dict[str, Any]:
    """The values of STATE now."""
    return {name: read() for name, (read, _) in STATE.items()}


def restore_state(before: dict[str, Any]) -> list[str]:
    """Restore what differs from an earlier `global_state`. Returns the names of the differences."""
    changed = [name for name, (read, _) in STATE.items() if read() != before[name]]
    for name in changed:
        STATE[name][1](before[name])
    return changed


# Threads and processes that a method leaves behind: their work is not part of a call's time.

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Have the kernel make each descendant whose parent ends a child of this process, so that a
    daemon can't leave it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def check_python_threads() -> None:
    main = threading.main_thread().ident
    # A progress bar's thread only wakes to redraw it.
    bars = {t.ident for t in threading.enumerate() if type(t).__module__.startswith("tqdm.")}
    if set(sys._current_frames()) - {main} - bars:
        fail_check("works on another thread: one is alive in addition to the main one")


def check_processes() -> None:
    """Raises IntegrityError when a child process is alive."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if child.status() != psutil.STATUS_ZOMBIE:
                fail_check("works in another process: this one has children")
