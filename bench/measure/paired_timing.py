"""Times the method against vanilla in one process: same weights, same inputs, pairs in an order
drawn by a seeded coin flip, every fourth pair vanilla against vanilla.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from bench.execution import worker
from bench.measure import outside, side_effects
from bench.measure.pair_shares import PairCost, PairShare, plan_shares
from bench.measure.side_effects import raise_recorded
from bench.measure.timed_call import Answer, Arm, Drawn
from bench.request.cell import Cell
from bench.rows.columns import Row
from bench.status import Status

AA_EVERY = 4
MIN_SAMPLE_NS = 2_000_000
"""Shorter calls are grouped into samples of this length, well above the clock's resolution."""
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 5.0, 0.03
WARM_CALLS_AGAIN = 2
"""Calls of each arm before the first sample of a further process; where they are long, one."""
CHECK_CALLS, LONG_CHECK_CALLS = 5, 2
"""Calls of the method that the checks of a further process make; where they are long, after the
pairs alone."""


@contextlib.contextmanager
def timing_loop() -> Iterator[None]:
    """Without garbage collection. Raises IntegrityError for threads and processes that are left
    behind."""
    side_effects.check_python_threads()
    most = len(side_effects.thread_ids())
    with garbage_collection_off():
        yield
    side_effects.check(most)
    raise_recorded()


@contextlib.contextmanager
def garbage_collection_off() -> Iterator[Callable[[], int]]:
    """Without garbage collection; yields a function for the nanoseconds since the start."""
    gc.collect()
    gc.freeze()
    gc.disable()
    started = perf_counter_ns()
    try:
        yield lambda: perf_counter_ns() - started
    finally:
        gc.enable()
        gc.unfreeze()


def warm_up(arm: Arm, most: int = WARM_CALLS) -> Row:
    """Calls until the median of three is within 3 % of the three before, another would take longer
    than WARM_SECONDS, or `most`; an arm that was never called is called twice."""
    started = time.monotonic()
    calls: list[int] = []
    settled = False
    while not settled and len(calls) < most:
        calls.append(arm(len(calls)))
        another_s = time.monotonic() - started + calls[-1] / 1e9
        if another_s > WARM_SECONDS and len(arm.took) > 1:
            break
        if len(calls) >= 6:
            now, before = (statistics.median(part) for part in (calls[-3:], calls[-6:-3]))
            settled = abs(now / before - 1) <= WARM_SETTLED
    return {"warmup_calls": len(calls), "warmup_converged": settled}


def vanilla_failure(base: Callable[[int], int], budget_s: float = math.inf) -> dict[str, Any]:
    """Calls vanilla once. Returns columns with the reason why it can't be timed, and the `reason`
    why there is no ratio; empty when it can."""
    try:
        call_s = base(0) / 1e9
    except (RuntimeError, MemoryError) as error:
        status = worker.memory_status(error)
        if status is None:
            raise
        reason = str(error).splitlines()[0]
        ratio_reason = f"vanilla: {reason}"
    else:
        if call_s <= budget_s:
            return {}
        status = Status.TIMEOUT
        reason = f"one call of vanilla takes {call_s:.1f} s, the budget is {budget_s:.0f} s"
        ratio_reason = reason
    return {"baseline_status": status, "baseline_reason": reason, "reason": ratio_reason}


def plan_pairs(
    method: Arm, base: Arm, cell: Cell, ready_ns: int = 0, twin: Arm | None = None
) -> list[PairShare]:
    """The shares of the cell's processes, by the last calls of the arms. `ready_ns`: what this
    process took until its model and inputs were loaded, as a further one will."""
    method_ns, base_ns, *twin_ns = (arm.usual_ns for arm in (method, base, twin) if arm)
    calls = max(1, math.ceil(MIN_SAMPLE_NS / min(method_ns, base_ns, *twin_ns)))
    each_ns = method_ns + base_ns + sum(twin_ns)
    if method_ns < outside.LONG_NS:
        warm_ns = CHECK_CALLS * method_ns + WARM_CALLS_AGAIN * each_ns
        warm_ns += outside.cost_ns(method_ns, base_ns)
    else:
        warm_ns = LONG_CHECK_CALLS * method_ns + each_ns
    cost = PairCost(
        pair_s=calls * (method_ns + base_ns + 2 * base_ns / (AA_EVERY - 1)) / 1e9,
        startup_s=(ready_ns + warm_ns) / 1e9,
        twin_s=calls * (method_ns + twin_ns[0]) / 1e9 if twin_ns else 0.0,
    )
    return plan_shares(cell.plan, cost, calls)


class Sample(NamedTuple):
    """Nanoseconds of a call, the mean over a sample's calls: all of it, and those in which its main
    thread waited for a processor."""

    wall_ns: int
    waited_ns: int

    @property
    def less_waits_ns(self) -> int:
        return max(1, self.wall_ns - self.waited_ns)


Pairs = list[tuple[Sample, Sample]]


class PairSamples(NamedTuple):
    """The samples of method and base, those of the base paired with itself, and a letter for each
    pair: the arm that went first, or A for equal arms. `rel_l2` and `top1` compare the answers of
    each pair of calls: relative error, and share of equal first choices."""

    pairs: Pairs
    aa: Pairs
    order: str
    rel_l2: list[float]
    top1: list[float]

    @property
    def without_waits(self) -> bool:
        """Whether paired ratios vary less once waits for a processor are left out. With several
        threads, those of the main thread are not enough."""
        if torch.get_num_threads() > 1 or not any(a.waited_ns + b.waited_ns for a, b in self.pairs):
            return False
        with_waits = [math.log(max(1, a.wall_ns) / max(1, b.wall_ns)) for a, b in self.pairs]
        without = [math.log(a.less_waits_ns / b.less_waits_ns) for a, b in self.pairs]
        return _spread(without) < _spread(with_waits)

    def fields(self) -> dict[str, Any]:
        """Both sides of each pair, as fields of a comparison."""
        method_ns, base_ns = self.sides(self.pairs)
        return {"samples_ns": method_ns, "base_samples_ns": base_ns, "pair_order": self.order}

    def sides(self, pairs: Pairs) -> tuple[list[int], list[int]]:
        """The nanoseconds of either side of the pairs."""
        without = self.without_waits
        first, second = (
            [
                one.less_waits_ns if without else one.wall_ns
                for one in (pair[side] for pair in pairs)
            ]
            for side in (0, 1)
        )
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
    """The share's pairs, in an order that `coin` decides, both arms on the same new input; every
    `aa_every`-th pair is one of the base with itself. Raises IntegrityError."""
    calls = share.calls
    first_pair = share.done + max(0, share.done - 1) // (AA_EVERY - 1)
    samples = PairSamples([], [], "", [], [])
    order = ""
    method.reset()
    base.reset()
    with timing_loop():
        while len(samples.pairs) < share.pairs:
            i = first_pair + len(order)
            progress(len(samples.pairs))
            if i % aa_every == aa_every - 1:
                samples.aa.append((_sample(base, i, calls), _sample(base, i, calls)))
                method.catch_up(2 * calls)
                order += "A"
                base.given.clear()
                continue
            order += "M" if coin.random() < 0.5 else "V"
            drawn = method.draw(i * calls, calls)
            taken = {
                arm: _sample(arm, i, calls, drawn)
                for arm in ((method, base) if order[-1] == "M" else (base, method))
            }
            samples.pairs.append((taken[method], taken[base]))
            for given, exact in zip(method.given, base.given, strict=True):
                error, agree = compared(given, exact)
                samples.rel_l2.append(error)
                samples.top1.append(agree)
            method.given.clear()
            base.given.clear()
    method.check_streams(int(statistics.median(one.wall_ns for one, _ in samples.pairs)))
    return samples._replace(order=order)


def _sample(arm: Arm, i: int, calls: int, drawn: Drawn | None = None) -> Sample:
    took = arm.sample(i, calls, drawn)
    return Sample(took, sum(arm.waits[-calls:]) // calls)


def compared(given: Answer, exact: Answer) -> tuple[float, float]:
    """The relative error of an answer, and the share of equal first choices; 1 and 0 where the
    answers have different sizes."""
    if given.logits.shape != exact.logits.shape:
        return 1.0, 0.0
    norm = float(exact.logits.norm()) or 1.0
    agree = (given.first == exact.first).float().mean()
    return float((given.logits - exact.logits).norm()) / norm, float(agree)


def time_pairs(
    method: Arm,
    base: Arm,
    cell: Cell,
    report: worker.Report,
    share: PairShare,
    stage: str = "latency",
) -> dict[str, Any]:
    """`timed`: the share's pairs with vanilla, as fields of a comparison; and columns of the row.
    Raises IntegrityError."""
    coin, progress = pair_coin("pairs", cell, share), pair_progress(report, share, stage=stage)
    samples = sample_pairs(method, base, share, coin, progress, AA_EVERY)
    aa_first, aa_second = samples.sides(samples.aa)
    return {
        "timed": {
            **samples.fields(),
            "aa_first_samples_ns": aa_first,
            "aa_second_samples_ns": aa_second,
            "calls_per_sample": share.calls,
            "process_reason": share.reason,
            "waits_left_out": samples.without_waits or None,
        },
        "wall_samples_ns": method.walls(share.calls),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "base_page_faults": round(statistics.mean(base.faults)),
        "baseline_status": Status.OK,
        "timed_rel_l2_samples": samples.rel_l2,
        "timed_top1_samples": samples.top1,
        "notes": method.process.notes,
    }


def pair_coin(purpose: str, cell: Cell, share: PairShare) -> random.Random:
    """What decides the order of each pair of a process."""
    process = f" {share.process}" if share.process else ""
    return random.Random(f"{purpose} {cell.seed}{process}")


def pair_progress(
    report: worker.Report, share: PairShare, before: int = 0, stage: str = "latency"
) -> Callable[[int], None]:
    """Reports how many pairs are done in all processes, where this one has timed `before` of its
    other kind."""
    return lambda done: report(stage, share.ahead + before + done, share.total, share.note)


def time_unpaired(
    method: Arm,
    cell: Cell,
    report: worker.Report,
    failure: Mapping[str, Any],
    calls: int = 1,
    stage: str = "latency",
) -> dict[str, Any]:
    """As `time_pairs`, of the method alone: samples of at least `calls` calls. `failure`: why
    vanilla can't be timed, empty for vanilla itself."""
    call_ns = method.usual_ns
    calls = max(calls, math.ceil(MIN_SAMPLE_NS / call_ns))
    count = max(3, min(cell.plan.pairs, int(cell.plan.budget_s * 1e9 / (calls * call_ns))))
    samples = []
    method.reset()
    with timing_loop():
        for i in range(count):
            report(stage, i, count)
            samples.append(method.sample(i, calls))
            method.given.clear()
    method.check_streams(int(statistics.median(samples)))
    columns = dict(failure)
    reason = columns.pop("reason", None)
    return columns | {
        "timed": {"samples_ns": samples, "calls_per_sample": calls, "reason": reason},
        "wall_samples_ns": method.walls(calls),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "notes": method.process.notes,
    }
