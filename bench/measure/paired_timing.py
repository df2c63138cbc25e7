"""Times the method against vanilla in one process: same weights, same inputs, pairs in an order
drawn by a seeded coin flip, every fourth pair vanilla against vanilla. The first process divides a
cell's pairs among several, from the cost of calls and before any ratio is computed.
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

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.measure import integrity
from bench.models.base import Family
from bench.request.cell import Cell
from bench.request.schema import MeasurePlan
from bench.status import Status
from bench.store.columns import Row
from methods.base import Method, SequenceInfo

INPUTS = 4
AA_EVERY = 4
MIN_SAMPLE_NS = 2_000_000
"""Shorter calls are grouped into samples of this length, well above the clock's resolution."""
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 10.0, 0.03
WARM_METHOD, WARM_BASE = 2, 3
"""Calls before the first sample of a further process; its checks have called the method before."""
CHECK_CALLS = 5
"""Calls of the method that the checks make: two before the pairs, three after them."""
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


def plan_pairs(method: Arm, base: Arm, cell: Cell, ready_ns: int = 0) -> list[PairShare]:
    """The shares of the cell's processes. `ready_ns`: what this process took until its model and
    inputs were loaded, as a further one will."""
    method_ns, base_ns = (max(arm(0), 1) for arm in (method, base))
    calls = max(1, math.ceil(MIN_SAMPLE_NS / min(method_ns, base_ns)))
    pair_s = calls * (method_ns + base_ns + 2 * base_ns / (AA_EVERY - 1)) / 1e9
    startup_ns = ready_ns + (CHECK_CALLS + WARM_METHOD) * method_ns + WARM_BASE * base_ns
    return plan_shares(cell.plan, pair_s, startup_ns / 1e9, calls)


def time_pairs(method: Arm, base: Arm, cell: Cell, report: worker.Report, share: PairShare) -> Row:
    calls = share.calls
    first_pair = share.done + max(0, share.done - 1) // (AA_EVERY - 1)
    process = f" {share.process}" if share.process else ""
    coin = random.Random(f"pairs {cell.seed}{process}")
    method_ns: list[int] = []
    base_ns: list[int] = []
    aa_ns: list[tuple[int, int]] = []
    order = ""
    with garbage_collection_off() as elapsed_ns:
        method.reset()
        base.reset()
        while len(method_ns) < share.pairs:
            i = first_pair + len(order)
            report("latency", share.done + len(method_ns), share.total)
            if i % AA_EVERY == AA_EVERY - 1:
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
    return {
        "lat_samples_ns": method_ns,
        "base_samples_ns": base_ns,
        "aa_first_samples_ns": [first for first, _ in aa_ns],
        "aa_second_samples_ns": [second for _, second in aa_ns],
        "wall_samples_ns": method.walls(calls),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "base_page_faults": round(statistics.mean(base.faults)),
        "calls_per_sample": calls,
        "pair_order": order,
        "baseline_status": Status.OK,
        "process_reason": share.reason,
    }


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
