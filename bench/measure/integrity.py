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
from torch import Tensor
from torch.nn.modules import module as torch_modules

from bench.execution import arms
from bench.host import linux
from bench.measure import finite, other_work
from bench.measure.failed_check import fail_check, raise_recorded
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from methods.base import AttentionCall, Layer, SequenceInfo, Sublayer

SETTLE_S = 0.05
UNTIMED_FRAC = 0.1
UNTIMED_S = 0.25
UNTIMED_CALL_NS = 2_000_000
CHANGED_FRAC = 1e-3
"""Of the output's norm: perturbed inputs change nearly all of a correct output."""
PROJECTIONS = 64
ANSWER_TOLERANCE = 0.05
"""Of the answer's norm; summation order changes at most about a thousandth of it."""


@contextmanager
def rechecked(family: Family, inputs: PerturbedInputs) -> Iterator[None]:
    """Sets `calls` to 0. After what runs inside, sets the family's method again and raises
    IntegrityError when it has changed weights or hooks, or answers from a cache."""
    method, weights, hooks = family.method, _weight_sums(family), _hooks(family)
    family.calls = 0
    yield
    family.method = method
    if hooks != _hooks(family):
        fail_check("changes the model: hooks or functions were added to its modules or removed")
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
        with other_work.recorded_starts() as started:
            second = family.encode(ids, sequence)
    finally:
        family.method = method
    raise_recorded()
    if started:
        fail_check(f"works on another thread or process: {started[0]} inside a call")
    other_work.check_single_thread()
    second_copy = second.clone()
    time.sleep(SETTLE_S)
    if not torch.equal(second_copy, second):
        fail_check("works on another thread: its output changes after it returned")
    _check_unchanged(inputs_copy, _tensors(ids, sequence), "the token ids or their masks")
    if not torch.equal(first, first_copy):
        fail_check("returns a cached output: one call's tensor is overwritten by the next")
    check_not_cached(family, inputs)


def check_attention_ran(family: Family, before: int = 0) -> None:
    """Raises IntegrityError when the method hasn't been called since `calls` was `before`."""
    if family.calls <= before:
        fail_check("never calls its own attention: the model ignores the method")


def check_not_cached(family: Family, inputs: PerturbedInputs) -> None:
    """Raises IntegrityError when two inputs of one shape at one address give one output."""
    one, other = (family.encode(*inputs.perturbed(0)).clone() for _ in range(2))
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


def check_untimed_share(timed_ns: int, wall_ns: int, waited_ns: int) -> str | None:
    """Raises IntegrityError when a loop took much longer than the sum of its timed calls and of its
    waits for a processor. Returns a reason to give no verdict where the waits account for the
    difference, or where the kernel doesn't count them; None where there is no difference."""
    untimed_ns = wall_ns - timed_ns
    most_ns = UNTIMED_S * 1e9 + UNTIMED_FRAC * wall_ns
    share = f"{untimed_ns / wall_ns:.0%} of the time is untimed"
    if untimed_ns <= most_ns:
        return None
    if not linux.counts_waits():
        return f"{share}, and this kernel doesn't count waits for a processor"
    if untimed_ns - waited_ns > most_ns:
        fail_check(f"works or sleeps outside the timed region: {share}")
    return f"busy machine: {share}, in which the process waited for a processor"


def check_untimed_calls(
    method_ns: Sequence[int], base_ns: Sequence[int], call_ns: int
) -> str | None:
    """Raises IntegrityError when much more untimed time passes around the method's calls than
    around vanilla's, less what both wait for a processor. Medians, as a busy machine delays
    either now and then. Where the kernel doesn't count waits, returns a reason to give no verdict
    instead."""
    excess = statistics.median(method_ns) - statistics.median(base_ns)
    if excess <= max(UNTIMED_CALL_NS, UNTIMED_FRAC * call_ns):
        return None
    around = f"{excess / 1e6:.1f} ms around each call"
    if linux.counts_waits():
        fail_check(f"works or sleeps outside the timed region: {around}")
    return f"{around} are untimed, and this kernel doesn't count waits for a processor"


def answer(family: Family, inputs: PerturbedInputs) -> list[float]:
    """Random projections of the first token's logits for the first, unperturbed batch: two answers
    differ about as much as their projections."""
    torch.manual_seed(0)
    return projected(arms.first_token(family, *inputs.restored(0)))


def projected(logits: Tensor) -> list[float]:
    """Random projections of all logits, the same of each tensor of this size."""
    logits = logits.float().flatten().cpu()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (PROJECTIONS, len(logits)), generator=generator) * 2.0 - 1
    return [float(x) for x in signs @ logits / PROJECTIONS**0.5]


def check_answer(given: Sequence[float], expected: Sequence[float], when: str) -> None:
    """Raises IntegrityError when an answer differs from that to the same input at another time."""
    check_same(torch.tensor(given), torch.tensor(expected), when)


def check_same(given: Tensor, expected: Tensor, when: str) -> None:
    difference = (given.float() - expected.float()).norm()
    if not bool(difference <= ANSWER_TOLERANCE * expected.float().norm()):
        fail_check(f"gives another answer than {when} to the same input")


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


def _hooks(family: Family) -> list[int]:
    """How many hooks each module runs before and after its forward, and functions of its own."""
    modules = list(family.model.modules())
    hooks = [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in modules]
    own = [sum(map(callable, vars(one).values())) for one in modules]
    return [
        len(torch_modules._global_forward_hooks),
        len(torch_modules._global_forward_pre_hooks),
        *hooks,
        *own,
    ]


def _tensors(ids: Tensor | None, sequence: SequenceInfo) -> list[Tensor]:
    tensors = (ids, sequence.positions, sequence.valid, sequence.vip, sequence.log_multiplicity)
    return [x for x in tensors if x is not None]


def _check_unchanged(before: Sequence[Tensor], after: Sequence[Tensor], what: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        fail_check(f"changes its input in place: {what}")
