"""Checks that a method must pass before its numbers count.

A failed check ends the cell with status `error` and the reason. docs/trust.md lists the checks, and
what they cannot detect from within the method's own process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from bench.host import torch_host
from bench.measure import finite, side_effects
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.side_effects import fail_check, raise_recorded
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from methods.base import AttentionCall, Layer, SequenceInfo, Sublayer

SETTLE_S = 0.05
CHANGED_FRAC = 1e-3
"""Relative to the output's norm; perturbed inputs change nearly all of a correct output."""
PROJECTIONS = 64


@contextmanager
def rechecked(family: Family, inputs: PerturbedInputs | None = None) -> Iterator[None]:
    """After what runs inside, sets the family's method again and raises IntegrityError when it has
    changed weights or, on these inputs, answers from a cache."""
    method, weights = family.method, _weight_sums(family)
    family.calls = 0
    yield
    family.method = method
    if inputs is not None:
        check_not_cached(family, inputs)
    if weights != _weight_sums(family):
        fail_check("changes the model's weights")


def check_method(family: Family, inputs: PerturbedInputs) -> None:
    """Raises IntegrityError for a method that never calls its own attention, changes its input,
    answers from a cache, or leaves work to another thread, and NotFiniteError for an output that
    isn't finite."""
    method = family.method
    ids, sequence = inputs.perturbed(0)
    with finite.watched(family):
        first = family.encode(ids, sequence)
    check_attention_ran(family)
    check_plain_tensor(first)
    if found := finite.not_finite(first, sequence.valid):
        raise finite.NotFiniteError(f"the model's last hidden states hold {found}")
    first_copy = first.clone()
    inputs_copy = [x.clone() for x in _tensors(ids, sequence)]
    family.method = InputWatcher(method)
    try:
        second = family.encode(ids, sequence)
    finally:
        family.method = method
    raise_recorded()
    side_effects.check_python_threads()
    side_effects.check_processes()
    second_copy = second.clone()
    time.sleep(SETTLE_S)
    if not torch.equal(second_copy, second):
        fail_check("works on another thread: its output changes after it returned")
    _check_unchanged(inputs_copy, _tensors(ids, sequence), "the token ids or their masks")
    if not torch.equal(first, first_copy):
        fail_check("returns a cached output: one call's tensor is overwritten by the next")
    check_not_cached(family, inputs, first_copy)


def check_attention_ran(family: Family, before: int = 0) -> None:
    """Raises IntegrityError when the method hasn't been called since `calls` was `before`."""
    if family.calls <= before:
        fail_check("never calls its own attention: the model ignores the method")


def check_not_cached(family: Family, inputs: PerturbedInputs, one: Tensor | None = None) -> None:
    """Raises IntegrityError when two inputs of one shape at one address give one output. `one` is
    the output of the last input, where there is one."""
    if one is None:
        one = family.encode(*inputs.perturbed(0)).clone()
    other = family.encode(*inputs.perturbed(0))
    if one.shape == other.shape and bool(
        (one - other).float().norm() <= CHANGED_FRAC * one.float().norm()
    ):
        fail_check("returns a cached output: another input gave the same")
    raise_recorded()


def check_plain_tensor(output: Any) -> None:
    """Raises IntegrityError for a tensor subclass, which may defer its computation."""
    if type(output) is not Tensor:
        fail_check(
            f"returns a {type(output).__name__}, which may compute later, instead of a plain tensor"
        )


def projected(logits: Tensor) -> list[float]:
    """Random projections of all logits, the same of each tensor of this size: two answers differ
    about as much as their projections."""
    logits = logits.float().flatten().cpu()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (PROJECTIONS, len(logits)), generator=generator) * 2.0 - 1
    return [float(x) for x in signs @ logits / PROJECTIONS**0.5]


@dataclass(frozen=True)
class InputWatcher(Wrapped):
    """A method whose inputs are compared before and after `attend`, `mix` and `encode`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        given = [query, key, value, *_tensors(None, call.sequence)]
        before = [x.clone() for x in given]
        out = super().attend(query, key, value, call)
        check_plain_tensor(out)
        _check_unchanged(before, given, "a layer's queries, keys or values")
        return out

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        before = hidden.clone()
        out = super().mix(hidden, sublayer, call)
        self._check(out, before, hidden)
        return out

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        before = hidden.clone()
        out = super().encode(layers, hidden, sequence)
        self._check(out, before, hidden)
        return out

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        before = hidden.clone()
        out, shorter = super().encode_shorter(layers, hidden, sequence)
        self._check(out, before, hidden)
        return out, shorter

    def _check(self, out: Tensor, before: Tensor, after: Tensor) -> None:
        check_plain_tensor(out)
        _check_unchanged([before], [after], "the hidden states it was given")


def _weight_sums(family: Family) -> list[float]:
    return [float(weight.float().sum()) for weight in family.model.parameters()]


def _tensors(ids: Tensor | None, sequence: SequenceInfo) -> list[Tensor]:
    tensors = (ids, sequence.positions, sequence.valid, sequence.vip, sequence.log_multiplicity)
    return [x for x in tensors if x is not None]


def _check_unchanged(before: Sequence[Tensor], after: Sequence[Tensor], what: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        fail_check(f"changes its input in place: {what}")


# The least time that a call can take: its matrix products at this machine's measured peak.

PEAK_MARGIN = 3.0
"""The peak is measured on one size of matrices and in moments that may be noisy: a call must be
faster than three times that before it is impossible."""


class DenseWork:
    """Floating-point operations in the model's own linear layers. Attention isn't counted, nor
    what a method computes by itself: a method may skip nearly all of the former."""

    flops = 0

    def add(self, module: nn.Module, given: tuple[Any, ...], _out: Any) -> None:
        if isinstance(module, nn.Linear) and given:
            self.flops += 2 * given[0].numel() * module.out_features


@contextmanager
def counted() -> Iterator[DenseWork]:
    """Counts what every model of this process does inside."""
    work = DenseWork()
    hook = register_module_forward_hook(work.add)
    try:
        yield work
    finally:
        hook.remove()


def peak_gflops(dtype: str, measured: float) -> float:
    """The CPU's peak: what was measured, or a second measurement, as the first one may have been a
    busy moment. In half precision also that of float32, in which a CPU without such products
    computes them: there one of large matrices may be much slower than a layer's."""
    again = (torch_host.gemm_gflops(each, "cpu") for each in {dtype, "float32"})
    return max(measured, *again)


def check(samples_ns: Sequence[int], flops: int, gemm_gflops: float) -> None:
    """Raises IntegrityError when the median call is too short for `flops` floating-point
    operations, which an untimed call of the same shape did."""
    floor_ns = flops / (PEAK_MARGIN * gemm_gflops)
    call_ns = statistics.median(samples_ns)
    if call_ns < floor_ns:
        fail_check(
            f"is faster than this machine: a call takes {call_ns / 1e6:.3f} ms, its linear layers "
            f"alone need {floor_ns / 1e6:.3f} ms at {PEAK_MARGIN:g} times the measured "
            f"{gemm_gflops:.0f} GFLOP/s"
        )
