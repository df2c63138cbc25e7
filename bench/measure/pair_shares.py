"""Divides a cell's pairs among several processes: from the cost of calls, before any ratio is
computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.request.schema import MeasurePlan
from bench.units import span

MIN_PAIRS = 3
"""Pairs of one process: with four processes, enough for an interval over all pairs."""
DECIDING_PAIRS = 10
"""Fewer pairs have no interval (bench.statistics.paired.paired_ratio)."""
WORTH_SAYING_S = 60.0
"""Timing that takes longer is announced."""
LONG_PAIR_S = 2.0
"""A pair that takes more is a long one: see MeasurePlan."""
LONG_PAIR = 0.25
"""Share of the budget. A pair that takes more leaves no time for another process."""


@dataclass(frozen=True)
class PairShare:
    """The share of process number `process`: `pairs` with vanilla, then `twin_pairs` with the exact
    twin, each sample a group of `calls` calls. Earlier processes time `done` pairs with vanilla and
    `ahead` of both kinds, all processes `total` of both. `reason`: why one process times all;
    `note`: how long all processes take."""

    pairs: int
    total: int
    calls: int
    process: int = 0
    done: int = 0
    twin_pairs: int = 0
    ahead: int = 0
    reason: str | None = None
    note: str = ""


@dataclass(frozen=True)
class PairCost:
    """Seconds of a pair with vanilla, of the start of a further process, and of a pair with the
    exact twin (0: there is none)."""

    pair_s: float
    startup_s: float
    twin_s: float = 0.0


def plan_shares(plan: MeasurePlan, cost: PairCost, calls: int) -> list[PairShare]:
    """The share of each process. The twin has half of vanilla's number of pairs; if this leaves too
    few pairs for several processes, each times one pair with the twin. The number of processes is
    reduced before the number of pairs falls below that of a decision."""
    most, budget_s = plan.processes, plan.budget_s
    if plan.long_pairs and cost.pair_s > LONG_PAIR_S:
        plan = replace(plan, pairs=min(plan.pairs, plan.long_pairs))
    if most == 1:
        reason = "the measure asks for one process"
    elif cost.pair_s > LONG_PAIR * budget_s:
        reason = f"a pair takes {cost.pair_s:.1f} s of a budget of {budget_s:.0f} s"
    else:
        # Two processes are too few to estimate an interval from their deviation.
        for n in range(most, 2, -1):
            least = max(n * MIN_PAIRS, DECIDING_PAIRS)
            for twin_pairs in (_half, lambda pairs, n=n: n):
                seconds = budget_s - (n - 1) * cost.startup_s
                pairs = _most_pairs(plan.pairs, seconds, cost, twin_pairs)
                if pairs >= min(least, plan.pairs):
                    return _divided(n, pairs, twin_pairs(pairs), calls, cost)
        reason = (
            f"a further process would take {cost.startup_s:.0f} s of a budget of {budget_s:.0f} s "
            "to start"
        )
    pairs = max(1, _most_pairs(plan.pairs, budget_s, cost, _half))
    return _divided(1, pairs, _half(pairs), calls, cost, reason)


def _half(pairs: int) -> int:
    """Half the number of pairs with vanilla, but at least the number that an interval needs."""
    return min(pairs, max(DECIDING_PAIRS, pairs // 2))


def _most_pairs(most: int, seconds: float, cost: PairCost, twin_pairs: Callable[[int], int]) -> int:
    """Pairs with vanilla, up to `most`, that fit into `seconds` with their pairs with the twin."""
    return sum(n * cost.pair_s + twin_pairs(n) * cost.twin_s <= seconds for n in range(1, most + 1))


def _divided(
    n: int, pairs: int, twin_pairs: int, calls: int, cost: PairCost, reason: str | None = None
) -> list[PairShare]:
    """The shares of `n` processes, with a note if all of them together take long."""
    twin_pairs, note = twin_pairs if cost.twin_s else 0, ""
    seconds = pairs * cost.pair_s + twin_pairs * cost.twin_s + (n - 1) * cost.startup_s
    if seconds >= WORTH_SAYING_S:
        processes = f"{n} processes" if n > 1 else "one process"
        note = f"{pairs} pairs of {cost.pair_s:.1f} s in {processes}, about {span(seconds)}"
    shares: list[PairShare] = []
    done = ahead = 0
    for i in range(n):
        own, twin = (whole // n + (i < whole % n) for whole in (pairs, twin_pairs))
        total = pairs + twin_pairs
        shares.append(PairShare(own, total, calls, i, done, twin, ahead, reason, note))
        done, ahead = done + own, ahead + own + twin
    return shares
