"""What a method must pass before its numbers count: it does the work, on this input, here and now.

A number from a method that fails is worth nothing, so each failure ends the cell as an error that
names what was seen. docs/trust.md says what can't be seen from within the method's own process.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from bench.children.wrapped import Wrapped
from bench.models.base import Family
from methods.base import Call, Layer, Sequence

Input = tuple[Tensor, Sequence]

SETTLE_S = 0.05
OUTSIDE_FRAC = 0.1
OUTSIDE_S = 0.25
UNSEEN_NS = 2_000_000
CHANGED_FRAC = 1e-3
"""Of the output's norm: a document begun at another word changes nearly all of an honest one."""


class Cheat(Exception):
    """A method that doesn't do what it is timed for."""


_found: list[str] = []


def accuse(reason: str) -> NoReturn:
    """Raise Cheat, and remember it: a method may catch what is raised below it."""
    _found.append(reason)
    raise Cheat(reason)


def confirm_honest() -> None:
    """Raises the first Cheat that was raised and didn't get here."""
    if _found:
        raise Cheat(_found[0])


class Fresh:
    """Batches of which each use has its documents begun at another word: same tokens, same cost,
    but no call sees what an earlier one saw. Memory stays the same, as in a served model."""

    def __init__(self, batches: Items[Input], seed: int):
        self.batches = batches
        self.random = random.Random(f"inputs {seed}")
        self.original = [ids.clone() for ids, _ in batches]
        self.free = [_free_places(ids, sequence) for ids, sequence in batches]

    def __len__(self) -> int:
        return len(self.batches)

    def same(self, i: int) -> Input:
        """Batch i as it was last seen."""
        return self.batches[i % len(self)]

    def as_given(self, i: int) -> Input:
        """Batch i as it was before any change."""
        i %= len(self)
        self.batches[i][0].copy_(self.original[i])
        return self.batches[i]

    def at(self, i: int) -> Input:
        """Batch i, changed."""
        i %= len(self)
        ids, _ = self.batches[i]
        for row, places in enumerate(self.free[i]):
            if len(places) > 2:
                moved = self.original[i][row, places].roll(self.random.randrange(len(places)))
                # A turn may come again, with another token at another place it hardly will.
                one, other = self.random.sample(range(len(places)), 2)
                moved[one] = moved[other]
                ids[row, places] = moved
        return self.batches[i]


def _free_places(ids: Tensor, sequence: Sequence) -> list[Tensor]:
    """In each row the places that are neither padding, nor VIP, nor the last token."""
    free = torch.ones_like(ids, dtype=torch.bool)
    free[:, -1] = False
    for mask in (sequence.valid, None if sequence.vip is None else ~sequence.vip):
        if mask is not None:
            free &= mask
    return [row.nonzero()[:, 0] for row in free]


def check(family: Family, inputs: Fresh) -> None:
    """Raises Cheat, with what was seen, for a method that hasn't called its own attention since
    the family's calls were set to 0, changes its input, answers from a cache, leaves work to
    another thread, or isn't finite."""
    method = family.method
    ids, sequence = inputs.at(0)
    first = family.encode(ids, sequence)
    if not family.calls:
        accuse("never calls its own attention: the model ignores the method")
    plain(first)
    whole = sequence.valid is None or first.shape[:2] != sequence.valid.shape
    valid = first if whole else first[sequence.valid]
    if not bool(torch.isfinite(valid).all()):
        accuse("its output isn't a tensor of finite numbers")
    kept = first.clone()
    given = [x.clone() for x in _tensors(ids, sequence)]
    family.method = Watched(method)
    try:
        with started_noted() as started:
            again = family.encode(ids, sequence)
    finally:
        family.method = method
    confirm_honest()
    if started:
        accuse(f"works on another thread or process: {started[0]} inside a call")
    _alone()
    copy = again.clone()
    time.sleep(SETTLE_S)
    if not torch.equal(copy, again):
        accuse("works on another thread: its output changes after it returned")
    _unchanged(given, _tensors(ids, sequence), "the token ids, or what is told of them")
    if not torch.equal(first, kept):
        accuse("returns a cached output: the tensor of one call is written by the next")
    check_fresh(family, inputs)


def check_fresh(family: Family, inputs: Fresh) -> None:
    """Raises Cheat when two inputs, in one place of memory and of one shape, give one output."""
    outputs = [family.encode(*inputs.at(0)).clone() for _ in range(2)]
    one, other = outputs
    if one.shape == other.shape and bool(
        (one - other).float().norm() <= CHANGED_FRAC * one.float().norm()
    ):
        accuse("returns a cached output: another input gave the same")
    confirm_honest()


def plain(output: Any) -> None:
    """Raises Cheat for an output that is no ordinary tensor, so may still be to be computed."""
    if type(output) is not Tensor:
        accuse(f"returns a {type(output).__name__}, which may compute later, and no plain tensor")


def weights(family: Family) -> list[float]:
    """Sums over the model's weights: the same before and after, or someone wrote to them."""
    return [float(weight.float().sum()) for weight in family.model.parameters()]


def check_outside(timed_ns: int, wall_ns: int) -> None:
    """Raises Cheat when a loop of timed calls took much longer than the calls say they did."""
    outside = (wall_ns - timed_ns) / 1e9
    if outside > OUTSIDE_S + OUTSIDE_FRAC * wall_ns / 1e9:
        share = outside / (wall_ns / 1e9)
        accuse(f"works or sleeps outside the timed region: {share:.0%} of the time is unseen")


def check_unseen(method_ns: Items[int], base_ns: Items[int], call_ns: int) -> None:
    """Raises Cheat when around the method's calls much more time passes untimed than around
    vanilla's; medians, as a busy machine stops either now and then."""
    more = statistics.median(method_ns) - statistics.median(base_ns)
    if more > max(UNSEEN_NS, OUTSIDE_FRAC * call_ns):
        accuse(f"works or sleeps outside the timed region: {more / 1e6:.1f} ms around each call")


@dataclass(frozen=True)
class Watched(Wrapped):
    """A method whose inputs are compared before and after each of its two answers."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        given = [query, key, value, *_tensors(None, call.sequence)]
        before = [x.clone() for x in given]
        out = super().attend(query, key, value, call)
        plain(out)
        _unchanged(before, given, "a layer's queries, keys or values")
        return out

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        before = hidden.clone()
        out = super().encode(layers, hidden, sequence)
        plain(out)
        _unchanged([before], [hidden], "the hidden states it was given")
        return out

    def encode_shorter(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence
    ) -> tuple[Tensor, Sequence]:
        before = hidden.clone()
        out, shorter = super().encode_shorter(layers, hidden, sequence)
        plain(out)
        _unchanged([before], [hidden], "the hidden states it was given")
        return out, shorter


def _tensors(ids: Tensor | None, sequence: Sequence) -> list[Tensor]:
    told = (ids, sequence.positions, sequence.valid, sequence.vip, sequence.log_multiplicity)
    return [x for x in told if x is not None]


def _unchanged(before: Items[Tensor], after: Items[Tensor], what: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        accuse(f"changes its input in place: {what}")


def _alone() -> None:
    """Raises Cheat when another Python thread or a child process is there."""
    own = threading.main_thread().ident
    # A bar's thread only wakes to redraw it.
    bars = {t.ident for t in threading.enumerate() if type(t).__module__.startswith("tqdm.")}
    if set(sys._current_frames()) - {own} - bars:
        accuse("works on another thread: one is there besides the main one")
    if children():
        accuse("works in another process: this one has children")


def children() -> list[int]:
    """Processes that this one started and that haven't been waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


STARTS = {
    "_thread.start_new_thread": "a thread was started",
    "_thread.start_joinable_thread": "a thread was started",
    "os.fork": "a process was forked",
    "os.posix_spawn": "a process was started",
    "subprocess.Popen": "a process was started",
}

Listener = Callable[[str, tuple[Any, ...]], None]


@dataclass
class _Ear:
    """What Python's audit events are told to, while anything listens."""

    listeners: list[Listener] = field(default_factory=list)
    hooked: bool = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        for listener in self.listeners:
            listener(event, arguments)


_ear = _Ear()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Every audit event goes to the listener inside, which may raise to stop what it announces."""
    if not _ear.hooked:
        sys.addaudithook(_ear.hear)  # such a hook can't be taken out again
        _ear.hooked = True
    _ear.listeners.append(listener)
    try:
        yield
    finally:
        _ear.listeners.remove(listener)


@contextmanager
def started_noted() -> Iterator[list[str]]:
    """Collects a line for each thread and process started inside."""
    noted: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            noted.append(STARTS[event])

    def start(thread: threading.Thread) -> None:
        noted.append("a thread was started")
        begin(thread)

    # Before Python 3.12 no event tells of a thread.
    begin, threading.Thread.start = threading.Thread.start, start  # type: ignore
    try:
        with listening(hear):
            yield noted
    finally:
        threading.Thread.start = begin  # type: ignore
