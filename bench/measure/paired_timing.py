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
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import NamedTuple

from bench.execution import worker
from bench.execution.claimed_time import LOOP_STARTS
from bench.host import linux
from bench.measure import clocks, integrity
from bench.measure.failed_check import raise_recorded
from bench.measure.pair_shares import PairCost, PairShare, plan_shares
from bench.measure.timed_call import Arm, ProcessGuard
from bench.request.cell import Cell
from bench.status import Status
from bench.store.columns import Row

INPUTS = 4
AA_EVERY = 4
MIN_SAMPLE_NS = 2_000_000
"""Shorter calls are grouped into samples of this length, well above the clock's resolution."""
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 10.0, 0.03
WARM_METHOD, WARM_BASE = 2, 2
"""Calls of the method, and of what it is paired with, before the first sample of a further process;
its checks have called the method before."""
CHECK_CALLS = 9
"""Calls of the method that the checks make: five before the pairs, four after them."""


@contextlib.contextmanager
def timing_loop(guard: ProcessGuard, base: Arm | None = None) -> Iterator[Callable[[], int]]:
    """What `garbage_collection_off` does, with checks of clocks, functions, threads and processes,
    also of those that compute while `base` runs, and of its memory. Raises IntegrityError."""
    threads = guard.threads
    with (
        garbage_collection_off() as elapsed_ns,
        threads.watched(),
        clocks.compared(elapsed_ns, threads.most),
    ):
        guard.claim(LOOP_STARTS, 0)
        yield elapsed_ns
        guard.functions.check()
        if base:
            threads.check_turn(base.other)
            base.check_memory_kept()
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
    """Calls until the median of three is within 3 % of the three before, or `most`."""
    started = time.monotonic()
    calls: list[int] = []
    settled = False
    while not settled and len(calls) < most:
        calls.append(arm(len(calls)))
        if len(calls) >= 3 and time.monotonic() - started > WARM_SECONDS:
            break
        if len(calls) >= 6:
            now, before = (statistics.median(part) for part in (calls[-3:], calls[-6:-3]))
            settled = abs(now / before - 1) <= WARM_SETTLED
    return {"warmup_calls": len(calls), "warmup_converged": settled}


def vanilla_failure(base: Callable[[int], int], budget_s: float = math.inf) -> Row:
    """Calls vanilla once. Returns columns with the reason why it can't be timed, empty when it
    can."""
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
    return {"baseline_status": status, "baseline_reason": reason, "ratio_reason": ratio_reason}


def plan_pairs(
    method: Arm, base: Arm, cell: Cell, ready_ns: int = 0, twin: Arm | None = None
) -> list[PairShare]:
    """The shares of the cell's processes. `ready_ns`: what this process took until its model and
    inputs were loaded, as a further one will."""
    method_ns, base_ns, *twin_ns = (max(arm(0), 1) for arm in (method, base, twin) if arm)
    calls = max(1, math.ceil(MIN_SAMPLE_NS / min(method_ns, base_ns, *twin_ns)))
    warm_ns = (CHECK_CALLS + WARM_METHOD) * method_ns + WARM_BASE * (base_ns + sum(twin_ns))
    cost = PairCost(
        pair_s=calls * (method_ns + base_ns + 2 * base_ns / (AA_EVERY - 1)) / 1e9,
        startup_s=(ready_ns + warm_ns) / 1e9,
        twin_s=calls * (method_ns + twin_ns[0]) / 1e9 if twin_ns else 0.0,
    )
    return plan_shares(cell.plan, cost, calls)


class PairSamples(NamedTuple):
    """Nanoseconds of both sides of each pair and of each pair of the base with itself, and a letter
    for each pair: the arm that went first, or A for equal arms. `busy` is a reason to give no
    verdict."""

    method_ns: list[int]
    base_ns: list[int]
    aa_ns: list[tuple[int, int]]
    order: str
    busy: str | None = None


def sample_pairs(
    method: Arm,
    base: Arm,
    share: PairShare,
    coin: random.Random,
    progress: Callable[[int], None],
    aa_every: float = math.inf,
) -> PairSamples:
    """The share's pairs, in an order that `coin` decides; every `aa_every`-th is one of the base
    with itself. Raises IntegrityError."""
    calls = share.calls
    first_pair = share.done + max(0, share.done - 1) // (AA_EVERY - 1)
    method_ns: list[int] = []
    base_ns: list[int] = []
    aa_ns: list[tuple[int, int]] = []
    order = ""
    method.reset()
    base.reset()
    waited_ns = linux.waited_ns()
    with timing_loop(method.guard, base) as elapsed_ns:
        while len(method_ns) < share.pairs:
            i = first_pair + len(order)
            progress(len(method_ns))
            if len(method_ns) == share.pairs // 2:
                method.keep_next()
            if i % aa_every == aa_every - 1:
                aa_ns.append((base.sample(i, calls), base.sample(i, calls)))
                method.catch_up(2 * calls)
                order += "A"
            elif coin.random() < 0.5:
                method_ns.append(method.sample(i, calls))
                base_ns.append(base.sample(i, calls))
                order += "M"
            else:
                base_ns.append(base.sample(i, calls))
                method_ns.append(method.sample(i, calls))
                order += "V"
        wall_ns = elapsed_ns()
    waited_ns = linux.waited_ns() - waited_ns
    call_ns = int(statistics.median(method_ns))
    base_timed_ns = calls * sum(map(sum, (base_ns, *aa_ns)))
    method.check_clocks(call_ns)
    accounted_ns = base_timed_ns + calls * sum(method_ns) + sum((*method.between, *base.between))
    busy = integrity.check_untimed_share(accounted_ns, wall_ns, waited_ns)
    busy = integrity.check_untimed_calls(method.active, base.active, call_ns) or busy
    method.check_replay()
    return PairSamples(method_ns, base_ns, aa_ns, order, busy)


def time_pairs(
    method: Arm,
    base: Arm,
    cell: Cell,
    report: worker.Report,
    share: PairShare,
    stage: str = "latency",
) -> Row:
    """The share's pairs with vanilla, as columns. Raises IntegrityError."""
    coin, progress = pair_coin("pairs", cell, share), pair_progress(report, share, stage=stage)
    samples = sample_pairs(method, base, share, coin, progress, AA_EVERY)
    return {
        "lat_samples_ns": samples.method_ns,
        "base_samples_ns": samples.base_ns,
        "aa_first_samples_ns": [first for first, _ in samples.aa_ns],
        "aa_second_samples_ns": [second for _, second in samples.aa_ns],
        "wall_samples_ns": method.walls(share.calls),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "base_page_faults": round(statistics.mean(base.faults)),
        "calls_per_sample": share.calls,
        "pair_order": samples.order,
        "baseline_status": Status.OK,
        "process_reason": share.reason,
        "ratio_reason": samples.busy,
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
    return lambda done: report(stage, share.ahead + before + done, share.total)


def time_unpaired(
    method: Arm, cell: Cell, report: worker.Report, calls: int = 1, stage: str = "latency"
) -> Row:
    """The method's own samples, where there is no vanilla to pair them with: each of so many calls
    or more."""
    call_ns = max(method(0), 1)
    calls = max(calls, math.ceil(MIN_SAMPLE_NS / call_ns))
    count = max(3, min(cell.plan.pairs, int(cell.plan.budget_s * 1e9 / (calls * call_ns))))
    samples = []
    method.reset()
    waited_ns = linux.waited_ns()
    with timing_loop(method.guard) as elapsed_ns:
        for i in range(count):
            report(stage, i, count)
            if i == count // 2:
                method.keep_next()
            samples.append(method.sample(i, calls))
        wall_ns = elapsed_ns()
    method.check_clocks(int(statistics.median(samples)))
    accounted_ns = calls * sum(samples) + sum(method.between)
    integrity.check_untimed_share(accounted_ns, wall_ns, linux.waited_ns() - waited_ns)
    method.check_replay()
    return {
        "lat_samples_ns": samples,
        "wall_samples_ns": method.walls(calls),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "calls_per_sample": calls,
    }
