"""Checks that a method must pass before its numbers count.

A failed check ends the cell with status `error` and the reason. docs/trust.md lists the checks, and
the violations that they cannot detect from within the method's own process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from bench.measure import finite, side_effects
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.side_effects import check_plain_tensor, fail_check, raise_recorded
from bench.models.base import Family

CHANGED_FRAC = 1e-3
"""Relative to the output's norm; perturbed inputs change nearly all of a correct output."""
PROJECTIONS = 64


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
    given = [ids, *finite.tensors(sequence)]
    with finite.watched(family, unchanged), unchanged(given, "the token ids or their masks"):
        first = family.encode(ids, sequence)
    check_attention_ran(family)
    check_plain_tensor(first)
    if found := finite.not_finite(first, sequence.valid):
        raise finite.NotFiniteError(f"the model's last hidden states hold {found}")
    side_effects.check_python_threads()
    side_effects.check_processes()
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
