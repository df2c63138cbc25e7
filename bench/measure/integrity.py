"""Checks that a method must pass before its numbers count.

A failed check ends the cell with status `error` and the reason. docs/trust.md lists the checks, and
what they cannot detect from within the method's own process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from bench.execution import arms
from bench.measure import finite
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from methods.base import AttentionCall, Layer, SequenceInfo, Sublayer

Input = tuple[Tensor, SequenceInfo]

SETTLE_S = 0.05
UNTIMED_FRAC = 0.1
UNTIMED_S = 0.25
UNTIMED_CALL_NS = 2_000_000
CHANGED_FRAC = 1e-3
"""Of the output's norm: perturbed inputs change nearly all of a correct output."""
PROJECTIONS = 64
ANSWER_TOLERANCE = 0.05
"""Of the answer's norm; summation order changes at most about a thousandth of it."""


class IntegrityError(Exception):
    """A method failed a check."""


_failures: list[str] = []


def fail_check(reason: str) -> NoReturn:
    """Raises IntegrityError and records it, as a method may catch what is raised below it."""
    _failures.append(f"integrity check failed: {reason}")
    raise IntegrityError(_failures[-1])


def raise_recorded() -> None:
    """Raises the first IntegrityError that was raised earlier and caught by the method."""
    if _failures:
        raise IntegrityError(_failures[0])


class PerturbedInputs:
    """Batches whose document tokens are rotated anew at each use: the same tokens at the same cost,
    but no call sees an earlier call's input. The memory is reused, as in a served model."""

    def __init__(self, batches: Sequence[Input], seed: int):
        self.batches = batches
        self.random = random.Random(f"inputs {seed}")
        self.original = [ids.clone() for ids, _ in batches]
        self.free = [_free_positions(ids, sequence) for ids, sequence in batches]

    def __len__(self) -> int:
        return len(self.batches)

    def current(self, i: int) -> Input:
        """Batch i as it was last used."""
        return self.batches[i % len(self)]

    def restored(self, i: int) -> Input:
        """Batch i with its original tokens."""
        i %= len(self)
        self.batches[i][0].copy_(self.original[i])
        return self.batches[i]

    def perturbed(self, i: int) -> Input:
        """Batch i with its document tokens rotated, and one of them replaced by another."""
        i %= len(self)
        ids, _ = self.batches[i]
        for row, positions in enumerate(self.free[i]):
            if len(positions) > 2:
                tokens = self.original[i][row, positions].roll(
                    self.random.randrange(len(positions))
                )
                # A rotation may be drawn twice; with another token replaced it still differs.
                target, source = self.random.sample(range(len(positions)), 2)
                tokens[target] = tokens[source]
                ids[row, positions] = tokens
        return self.batches[i]


def _free_positions(ids: Tensor, sequence: SequenceInfo) -> list[Tensor]:
    """For each row the positions that are neither padding, nor VIP, nor last."""
    free = torch.ones_like(ids, dtype=torch.bool)
    free[:, -1] = False
    for mask in (sequence.valid, None if sequence.vip is None else ~sequence.vip):
        if mask is not None:
            free &= mask
    return [row.nonzero()[:, 0] for row in free]


@contextmanager
def rechecked(family: Family, inputs: PerturbedInputs) -> Iterator[None]:
    """Sets `calls` to 0. After what runs inside, sets the family's method again and raises
    IntegrityError when it has changed weights or answers from a cache."""
    method, weights = family.method, _weight_sums(family)
    family.calls = 0
    yield
    family.method = method
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
        with _recorded_starts() as started:
            second = family.encode(ids, sequence)
    finally:
        family.method = method
    raise_recorded()
    if started:
        fail_check(f"works on another thread or process: {started[0]} inside a call")
    _check_single_thread()
    second_copy = second.clone()
    time.sleep(SETTLE_S)
    if not torch.equal(second_copy, second):
        fail_check("works on another thread: its output changes after it returned")
    _check_unchanged(inputs_copy, _tensors(ids, sequence), "the token ids or their masks")
    if not torch.equal(first, first_copy):
        fail_check("returns a cached output: one call's tensor is overwritten by the next")
    check_not_cached(family, inputs)


def check_attention_ran(family: Family) -> None:
    """Raises IntegrityError when the method hasn't been called since `calls` was set to 0."""
    if not family.calls:
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


def check_untimed_share(timed_ns: int, wall_ns: int) -> None:
    """Raises IntegrityError when a loop took much longer than the sum of its timed calls."""
    untimed_s = (wall_ns - timed_ns) / 1e9
    if untimed_s > UNTIMED_S + UNTIMED_FRAC * wall_ns / 1e9:
        share = untimed_s / (wall_ns / 1e9)
        fail_check(f"works or sleeps outside the timed region: {share:.0%} of the time is untimed")


def check_untimed_calls(method_ns: Sequence[int], base_ns: Sequence[int], call_ns: int) -> None:
    """Raises IntegrityError when much more untimed time passes around the method's calls than
    around vanilla's. Medians, as a busy machine delays either now and then."""
    excess = statistics.median(method_ns) - statistics.median(base_ns)
    if excess > max(UNTIMED_CALL_NS, UNTIMED_FRAC * call_ns):
        fail_check(
            f"works or sleeps outside the timed region: {excess / 1e6:.1f} ms around each call"
        )


def answer(family: Family, inputs: PerturbedInputs) -> list[float]:
    """Random projections of the first token's logits for the first, unperturbed batch: two answers
    differ about as much as their projections."""
    torch.manual_seed(0)
    logits = arms.first_token(family, *inputs.restored(0)).float().flatten().cpu()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (PROJECTIONS, len(logits)), generator=generator) * 2.0 - 1
    return [float(x) for x in signs @ logits / PROJECTIONS**0.5]


def check_answer(given: Sequence[float], expected: Sequence[float]) -> None:
    one, other = torch.tensor(given), torch.tensor(expected)
    if not bool((one - other).norm() <= ANSWER_TOLERANCE * other.norm()):
        fail_check("gives another answer than in the first process to the same input")


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


def _check_single_thread() -> None:
    """Raises IntegrityError when another Python thread or a child process is alive."""
    main = threading.main_thread().ident
    # A progress bar's thread only wakes to redraw it.
    bars = {t.ident for t in threading.enumerate() if type(t).__module__.startswith("tqdm.")}
    if set(sys._current_frames()) - {main} - bars:
        fail_check("works on another thread: one is alive besides the main one")
    if _children():
        fail_check("works in another process: this one has children")


def _children() -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                pids.append(int(path.parent.name))
    return pids


START_EVENTS = {
    "_thread.start_new_thread": "a thread was started",
    "_thread.start_joinable_thread": "a thread was started",
    "os.fork": "a process was forked",
    "os.posix_spawn": "a process was started",
    "subprocess.Popen": "a process was started",
}
_starts: list[str] = []


@functools.cache
def _add_audit_hook() -> None:
    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event in START_EVENTS:
            _starts.append(START_EVENTS[event])

    sys.addaudithook(record)  # an audit hook can't be removed


@contextmanager
def _recorded_starts() -> Iterator[list[str]]:
    """Collects a line for each thread and process that Python code starts inside."""

    def start(thread: threading.Thread) -> None:
        _starts.append("a thread was started")
        original(thread)

    _add_audit_hook()
    _starts.clear()
    # Before Python 3.12 no audit event is raised for a thread.
    original, threading.Thread.start = threading.Thread.start, start  # type: ignore
    try:
        yield _starts
    finally:
        threading.Thread.start = original  # type: ignore
