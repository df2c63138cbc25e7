"""How a cell's pairs are shared by several processes: what each of them times, and what it must
answer as the first did.

The processes are planned in the first one, from the cost of calls and before any ratio is looked
at. What the others need to get ready is taken from the same budget.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from bench.cell import Plan
from bench.children import arms, gate
from bench.models.base import Family

LEAST_PAIRS = 4
"""Of a process: fewer have no median to speak of."""
LONG_PAIR = 0.25
"""Of the budget: a pair that takes more leaves no room for another process."""
WARM_METHOD, WARM_BASE = 2, 3
"""Calls before the first sample of a further process; the gate has called the method before."""
GATE_CALLS = 5
"""Of the method: two before the pairs, three after them."""
ANSWER_FIGURES = 64
OTHERWISE = 0.05
"""Of the answer's norm: what the order of sums may change is a thousandth of it."""


@dataclass(frozen=True)
class Share:
    """The pairs of process `process` (0 is the first): `pairs` of the cell's `total`, after `done`
    by others, in groups of `calls` calls. `reason`: why all are this process's."""

    pairs: int
    total: int
    calls: int
    process: int = 0
    done: int = 0
    reason: str | None = None

    @property
    def coin(self) -> str:
        """What the coin of this process is seeded with, beside the cell's seed."""
        return f" {self.process}" if self.process else ""


def planned(plan: Plan, pair_s: float, begin_s: float, calls: int) -> list[Share]:
    """Who times how many pairs, where a pair takes `pair_s` and a further process `begin_s`
    seconds beside its pairs."""
    whole = max(1, min(plan.pairs, int(plan.budget_s / pair_s)))
    n = plan.processes
    left_s = plan.budget_s - (n - 1) * begin_s
    total = min(plan.pairs, int(left_s / pair_s))
    reason = None
    if n == 1:
        reason = "the measure asks for one process"
    elif pair_s > LONG_PAIR * plan.budget_s:
        reason = f"a pair takes {pair_s:.1f} s of a budget of {plan.budget_s:.0f} s"
    elif total < n * LEAST_PAIRS:
        reason = (
            f"more processes would take {(n - 1) * begin_s:.0f} s of a budget of "
            f"{plan.budget_s:.0f} s to begin"
        )
    if reason:
        return [Share(whole, whole, calls, reason=reason)]
    each = [total // n + (i < total % n) for i in range(n)]
    return [Share(each[i], total, calls, i, sum(each[:i])) for i in range(n)]


def begin_ns(ready_ns: int, method_ns: int, base_ns: int) -> int:
    """What a further process needs beside its pairs, from what this one took until its model and
    inputs were there."""
    return ready_ns + (GATE_CALLS + WARM_METHOD) * method_ns + WARM_BASE * base_ns


def answer(family: Family, inputs: gate.Fresh) -> list[float]:
    """What the family answers to the first batch as it was before any change, as a few sums of its
    logits with random signs: two answers differ about as much as their sums do."""
    ids, sequence = inputs.as_given(0)
    torch.manual_seed(0)
    logits = arms.first_token(family, ids, sequence).float().flatten().cpu()
    signs = torch.randint(0, 2, (ANSWER_FIGURES, len(logits)), generator=_draw()) * 2.0 - 1
    return [float(x) for x in signs @ logits / ANSWER_FIGURES**0.5]


def check_answer(mine: Items[float], first: Items[float]) -> None:
    """Raises Cheat when this process answers otherwise than the first did."""
    one, other = torch.tensor(mine), torch.tensor(first)
    if not bool((one - other).norm() <= OTHERWISE * other.norm()):
        gate.accuse("answers otherwise than in the first process to the same input")


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)
