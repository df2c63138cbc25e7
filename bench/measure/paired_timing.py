"""Times the method against vanilla in one process: same weights, same inputs, pairs in an order
drawn by a seeded coin flip, every fourth pair vanilla against vanilla.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.measure import integrity
from bench.measure.pair_shares import PairCost, PairShare, plan_shares
from bench.models.base import Family
from bench.request.cell import Cell
from bench.status import Status
from bench.store.columns import Row
from methods.base import Method, SequenceInfo

INPUTS = 4
AA_EVERY = 4
MIN_SAMPLE_NS = 2_000_000
"""Shorter calls are grouped into samples of this length, well above the clock's resolution."""
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 10.0, 0.03
WARM_METHOD, WARM_BASE = 2, 2
"""Calls of the method, and of what it is paired with, before the first sample of a further process;
its checks have called the method before."""
CHECK_CALLS = 5
"""Calls of the method that the checks make: two before the pairs, three after them."""


@dataclass
class Arm:
    """One timed call of the model with `method` in it: monotonic clock on the CPU, events and one
    synchronisation on a GPU. Called with the number of an input, it returns nanoseconds.

    untimed  nanoseconds of each call outside the timed region
    faults   page faults of each call
    wall     on a GPU, nanoseconds of each call by the host's clock, kernel launches included
    """

    family: Family
    method: Method
    inputs: integrity.PerturbedInputs
    device: str
    untimed: list[int] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)
    last: Tensor | None = None

    def __call__(self, i: int) -> int:
        entered = perf_counter_ns()
        self.family.method = self.method
        ids, sequence = self.inputs.perturbed(i)
        forward = self._on_cuda if self.device == "cuda" else self._on_cpu
        faults = page_faults()
        took, logits = forward(ids, sequence)
        self.faults.append(page_faults() - faults)
        integrity.check_plain_tensor(logits)
        if self.last is not None and torch.equal(logits, self.last):
            integrity.fail_check("returns a cached output: another input gave the same")
        self.last = logits
        del logits
        self.untimed.append(perf_counter_ns() - entered - took)
        return took

    def sample(self, i: int, calls: int) -> int:
        """Sample i: the mean nanoseconds of `calls` calls."""
        return sum(self(i * calls + j) for j in range(calls)) // calls

    def reset(self) -> None:
        """Forget what was recorded of the calls so far."""
        for recorded in (self.untimed, self.faults, self.wall):
            recorded.clear()

    def walls(self, calls: int) -> list[int] | None:
        """The wall times, grouped like the samples; None where the clock is the host's."""
        starts = range(0, len(self.wall), calls)
        return [sum(self.wall[i : i + calls]) // calls for i in starts] or None

    def _on_cpu(self, ids: Tensor, sequence: SequenceInfo) -> tuple[int, Tensor]:
        started = perf_counter_ns()
        logits = arms.first_token(self.family, ids, sequence)
        return perf_counter_ns() - started, logits

    def _on_cuda(self, ids: Tensor, sequence: SequenceInfo) -> tuple[int, Tensor]:
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        started = perf_counter_ns()
        start.record()
        logits = arms.first_token(self.family, ids, sequence)
        end.record()
        torch.cuda.synchronize()
        self.wall.append(perf_counter_ns() - started)
        return int(start.elapsed_time(end) * 1e6), logits


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
    for each pair: the arm that went first, or A for equal arms."""

    method_ns: list[int]
    base_ns: list[int]
    aa_ns: list[tuple[int, int]]
    order: str


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
    with garbage_collection_off() as elapsed_ns:
        method.reset()
        base.reset()
        while len(method_ns) < share.pairs:
            i = first_pair + len(order)
            progress(len(method_ns))
            if i % aa_every == aa_every - 1:
                aa_ns.append((base.sample(i, calls), base.sample(i, calls)))
                order += "A"
            elif coin.random() < 0.5:
                method_ns.append(method.sample(i, calls))
                base_ns.append(base.sample(i, calls))
                order += "M"
            else:
                base_ns.append(base.sample(i, calls))
                method_ns.append(method.sample(i, calls))
                order += "V"
        timed_ns = calls * sum(map(sum, (method_ns, base_ns, *aa_ns)))
        integrity.check_untimed_share(timed_ns, elapsed_ns())
        integrity.check_untimed_calls(
            method.untimed, base.untimed, int(statistics.median(method_ns))
        )
    integrity.raise_recorded()
    return PairSamples(method_ns, base_ns, aa_ns, order)


def time_pairs(method: Arm, base: Arm, cell: Cell, report: worker.Report, share: PairShare) -> Row:
    """The share's pairs with vanilla, as columns. Raises IntegrityError."""
    coin, progress = pair_coin("pairs", cell, share), pair_progress(report, share)
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
    }


def pair_coin(purpose: str, cell: Cell, share: PairShare) -> random.Random:
    """What decides the order of each pair of a process."""
    process = f" {share.process}" if share.process else ""
    return random.Random(f"{purpose} {cell.seed}{process}")


def pair_progress(
    report: worker.Report, share: PairShare, before: int = 0
) -> Callable[[int], None]:
    """Reports how many pairs are done in all processes, where this one has timed `before` of its
    other kind."""
    return lambda done: report("latency", share.ahead + before + done, share.total)


def time_unpaired(method: Arm, cell: Cell, report: worker.Report) -> Row:
    """The method's own samples, where there is no vanilla to pair them with."""
    call_ns = max(method(0), 1)
    calls = max(1, math.ceil(MIN_SAMPLE_NS / call_ns))
    count = max(3, min(cell.plan.pairs, int(cell.plan.budget_s * 1e9 / (calls * call_ns))))
    samples = []
    method.reset()
    with garbage_collection_off() as elapsed_ns:
        for i in range(count):
            report("latency", i, count)
            samples.append(method.sample(i, calls))
        integrity.check_untimed_share(calls * sum(samples), elapsed_ns())
    integrity.raise_recorded()
    return {
        "lat_samples_ns": samples,
        "wall_samples_ns": method.walls(calls),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "calls_per_sample": calls,
    }


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
