"""Times the method against vanilla: same weights, same inputs, pairs in an order drawn by a seeded
coin flip, every fourth pair vanilla against vanilla. A cell's pairs are divided among several
processes, from the cost of calls, before any ratio is computed.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import torch

from bench.measure import integrity
from bench.measure.timed_call import Answer, Arm, Sample, check_streams
from bench.request.schema import MeasurePlan
from bench.units import span

AA_EVERY = 4
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


# The pairs of one process.


@contextlib.contextmanager
def timing_loop(in_process: bool = True) -> Iterator[None]:
    """Without garbage collection. Raises IntegrityError for threads and processes that a method in
    this process leaves behind."""
    with garbage_collection_off():
        yield
    if in_process:
        integrity.check_python_threads()
        integrity.check_processes()
        integrity.raise_recorded()


@contextlib.contextmanager
def garbage_collection_off() -> Iterator[Callable[[], int]]:
    """Without garbage collection; yields a function for the nanoseconds since the start. Objects
    that were frozen before, such as those of a fork server, stay frozen."""
    gc.collect()
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    gc.disable()
    started = perf_counter_ns()
    try:
        yield lambda: perf_counter_ns() - started
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()


Pairs = list[tuple[Sample, Sample]]


@dataclass
class PairSamples:
    """The samples of method and base, those of the base paired with itself, and a letter for each
    pair: the arm that went first, or A for equal arms. `rel_l2` and `top1` compare the answers of
    each pair of calls: relative error, and share of equal first choices."""

    pairs: Pairs = field(default_factory=list)
    aa: Pairs = field(default_factory=list)
    order: str = ""
    rel_l2: list[float] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)

    @property
    def without_waits(self) -> bool:
        """Whether paired ratios vary less without waits for a processor. Always false with several
        threads, since only the waits of the main thread are known."""
        if torch.get_num_threads() > 1 or not any(a.waited_ns + b.waited_ns for a, b in self.pairs):
            return False
        with_waits = [math.log(max(1, a.wall_ns) / max(1, b.wall_ns)) for a, b in self.pairs]
        without = [math.log(a.less_waits_ns / b.less_waits_ns) for a, b in self.pairs]
        return _spread(without) < _spread(with_waits)

    def fields(self) -> dict[str, Any]:
        """Both sides of each pair, as fields of a comparison."""
        method_ns, base_ns = self.sides(self.pairs)
        return {"samples_ns": method_ns, "base_samples_ns": base_ns, "pair_order": self.order}

    def fields_to_vanilla(self) -> dict[str, Any]:
        """As `fields`, for a comparison with vanilla, which also has pairs of equal arms."""
        first, second = self.sides(self.aa)
        return {
            **self.fields(),
            "aa_first_samples_ns": first,
            "aa_second_samples_ns": second,
            "waits_left_out": self.without_waits or None,
        }

    def sides(self, pairs: Pairs) -> tuple[list[int], list[int]]:
        """The nanoseconds of either side of the pairs."""
        time = "less_waits_ns" if self.without_waits else "wall_ns"
        first, second = ([getattr(pair[side], time) for pair in pairs] for side in (0, 1))
        return first, second


def _spread(logs: Sequence[float]) -> float:
    centre = statistics.median(logs)
    return statistics.median(abs(x - centre) for x in logs)


def sample_pairs(
    method: Arm,
    base: Arm,
    share: PairShare,
    coin: random.Random,
    progress: Callable[[int], None],
    aa_every: float = math.inf,
) -> PairSamples:
    """The share's pairs, in an order decided by `coin`, both arms on the same new input; every
    `aa_every`-th pair times the base against itself. Raises IntegrityError."""
    calls = share.calls
    first_pair = share.done + max(0, share.done - 1) // (AA_EVERY - 1)
    samples = PairSamples()
    method.reset()
    base.reset()
    with timing_loop(method.in_process):
        while len(samples.pairs) < share.pairs:
            i = first_pair + len(samples.order)
            progress(len(samples.pairs))
            if i % aa_every == aa_every - 1:
                samples.aa.append((base.sample(i, calls), base.sample(i, calls)))
                method.catch_up(2 * calls)
                samples.order += "A"
                base.given.clear()
                continue
            method_first = coin.random() < 0.5
            samples.order += "M" if method_first else "V"
            drawn = method.draw(i * calls, calls)
            turn = (method, base) if method_first else (base, method)
            taken = {arm: arm.sample(i, calls, drawn) for arm in turn}
            samples.pairs.append((taken[method], taken[base]))
            for given, exact in zip(method.given, base.given, strict=True):
                error, agree = compared(given, exact)
                samples.rel_l2.append(error)
                samples.top1.append(agree)
            method.given.clear()
            base.given.clear()
    check_streams(method.left, statistics.median(one.wall_ns for one, _ in samples.pairs))
    return samples


def compared(given: Answer, exact: Answer) -> tuple[float, float]:
    """The relative error of an answer, and the share of equal first choices; 1 and 0 where the
    answers have different sizes."""
    if given.logits.shape != exact.logits.shape:
        return 1.0, 0.0
    norm = float(exact.logits.norm()) or 1.0
    agree = (given.first == exact.first).float().mean()
    return float((given.logits - exact.logits).norm()) / norm, float(agree)


def sample_alone(method: Arm, count: int, calls: int, progress: Callable[[int], None]) -> list[int]:
    """Nanoseconds of a call in each of `count` samples of `calls` calls. Raises IntegrityError."""
    samples = []
    method.reset()
    with timing_loop(method.in_process):
        for i in range(count):
            progress(i)
            samples.append(method.sample(i, calls).wall_ns)
            method.given.clear()
    check_streams(method.left, statistics.median(samples))
    return samples
