"""Divides a cell's pairs among several processes: from the cost of calls, before any ratio is
computed."""

from __future__ import annotations

from dataclasses import dataclass

from bench.request.schema import MeasurePlan

MIN_PAIRS = 4
"""Pairs of one process; the median of fewer is too noisy."""
LONG_PAIR = 0.25
"""Of the budget: a pair that takes more leaves no room for another process."""


@dataclass(frozen=True)
class PairShare:
    """The pairs that process number `process` times: `pairs` of the cell's `total`, after `done` by
    earlier ones, each sample a group of `calls` calls. `reason`: why one process times all."""

    pairs: int
    total: int
    calls: int
    process: int = 0
    done: int = 0
    reason: str | None = None


def plan_shares(plan: MeasurePlan, pair_s: float, startup_s: float, calls: int) -> list[PairShare]:
    """The share of each process, where a pair takes `pair_s` seconds and a further process
    `startup_s` seconds beside its pairs."""
    n, budget_s = plan.processes, plan.budget_s
    startups_s = (n - 1) * startup_s
    total = min(plan.pairs, int((budget_s - startups_s) / pair_s))
    reason = None
    if n == 1:
        reason = "the measure asks for one process"
    elif pair_s > LONG_PAIR * budget_s:
        reason = f"a pair takes {pair_s:.1f} s of a budget of {budget_s:.0f} s"
    elif total < n * MIN_PAIRS:
        reason = (
            f"more processes would take {startups_s:.0f} s of a budget of {budget_s:.0f} s to start"
        )
    if reason:
        total = max(1, min(plan.pairs, int(budget_s / pair_s)))
        return [PairShare(total, total, calls, reason=reason)]
    pairs = [total // n + (i < total % n) for i in range(n)]
    return [PairShare(pairs[i], total, calls, i, sum(pairs[:i])) for i in range(n)]
