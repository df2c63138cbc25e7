"""What a method must pass before its time counts: it does the work, on this input, here and now.

A number from a method that fails is worth nothing, so each failure ends the cell as an error that
names what was seen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.models.base import Family
from methods.base import Call, Layer, Method, Sequence

SETTLE_S = 0.05
OUTSIDE_FRAC = 0.1
OUTSIDE_S = 0.25


class Cheat(Exception):
    """A method that doesn't do what it is timed for."""


def check(family: Family, ids: Tensor, sequence: Sequence) -> None:
    """Raises Cheat, with what was seen, for a method that doesn't call its own attention, changes
    its input, answers from a cache, leaves work to another thread, or isn't finite."""
    method, before = family.method, ids.clone()
    family.calls = 0
    first = family.encode(ids, sequence)
    if not family.calls:
        raise Cheat("never calls its own attention: the model ignores the method")
    valid = first if sequence.valid is None else first[sequence.valid]
    if type(first) is not Tensor or not bool(torch.isfinite(valid).all()):
        raise Cheat("its output isn't a tensor of finite numbers")
    kept = first.clone()
    try:
        family.method = Watched(method)
        with threads_noted() as started:
            again = family.encode(ids, sequence)
        if started:
            raise Cheat("works on another thread: it starts one inside a call")
        copy = again.clone()
        time.sleep(SETTLE_S)
        if not torch.equal(copy, again):
            raise Cheat("works on another thread: its output changes after it returned")
        if not torch.equal(ids, before):
            raise Cheat("changes its input in place: the token ids")
        if not torch.equal(first, kept):
            raise Cheat("returns a cached output: the tensor of one call is written by the next")
        # Another token in the same memory: whoever knows inputs by their address is caught too.
        place = ids.shape[1] // 2
        ids[:, place] = torch.where(ids[:, place] == 5, 6, 5)
        other = family.encode(ids, sequence)
        if other.shape == copy.shape and torch.equal(other, copy):
            raise Cheat("returns a cached output: another input gave the same")
    finally:
        family.method = method
        ids.copy_(before)


def check_outside(timed_ns: int, wall_ns: int) -> None:
    """Raises Cheat when a loop of timed calls took much longer than the calls say they did."""
    outside = (wall_ns - timed_ns) / 1e9
    if outside > OUTSIDE_S + OUTSIDE_FRAC * wall_ns / 1e9:
        share = outside / (wall_ns / 1e9)
        raise Cheat(f"works or sleeps outside the timed region: {share:.0%} of the time is unseen")


@dataclass(frozen=True)
class Watched(Method):
    """A method whose inputs are compared before and after each of its two answers."""

    method: Method

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        before = [x.clone() for x in (query, key, value)]
        out = self.method.attend(query, key, value, call)
        _unchanged(before, (query, key, value), "a layer's queries, keys or values")
        return out

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        before = hidden.clone()
        out = self.method.encode(layers, hidden, sequence)
        _unchanged([before], [hidden], "the hidden states it was given")
        return out


def _unchanged(before: Items[Tensor], after: Items[Tensor], what: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        raise Cheat(f"changes its input in place: {what}")


@dataclass
class _Notes:
    """Thread starts that Python has told of, while it is listened to."""

    open: list[list[str]] = field(default_factory=list)
    hooked: bool = False

    def hear(self, event: str, arguments: object) -> None:
        if self.open and event == "_thread.start_new_thread":
            self.open[-1].append(event)


_notes = _Notes()


@contextmanager
def threads_noted() -> Iterator[list[str]]:
    """Collects one entry for each Python thread started inside."""
    if not _notes.hooked:
        sys.addaudithook(_notes.hear)  # such a hook can't be taken out again
        _notes.hooked = True
    _notes.open.append([])
    try:
        yield _notes.open[-1]
    finally:
        _notes.open.pop()
