"""Latency of the method against vanilla in one process: same weights, same inputs, pairs whose
order is a seeded coin flip, every fourth pair vanilla/vanilla. The parent judges the samples, and
has more processes time their share of the pairs."""

from __future__ import annotations

import math
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from bench import system
from bench.cell import BASELINE, Cell
from bench.children import arms, child, gate, machine, malloc, share
from bench.children.fidelity import fidelity
from bench.children.share import Share
from bench.children.stages import alone, stages, still
from bench.models.base import Family
from methods.base import Method, Sequence

INPUTS = 4
AA_EVERY = 4
MIN_SAMPLE_NS = 2_000_000
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 10.0, 0.03


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """Raw samples of both arms and how they were taken, in nanoseconds. A `share` in the request
    is that of a further process, beside the `answer` that the first gave."""
    cell = Cell.from_json(request["cell"])
    malloc.keep()
    arms.prepare(cell, timed=True)
    began = perf_counter_ns()
    family = arms.load(cell, arms.method_of(cell))
    if "share" in request:
        return again(family, cell, Share(**request["share"]), request["answer"], report)
    result: dict[str, Any] = {"load_ns": perf_counter_ns() - began}
    facts = machine.facts(cell.dtype, cell.device["kind"])
    return result | facts | against_vanilla(family, cell, report)


def against_vanilla(family: Family, cell: Cell, report: child.Report) -> dict[str, Any]:
    """Samples of the method in the family and of vanilla in its place, the gate before and after.
    `shares` are what further processes are to time, `answer` what they must answer. Raises
    Cheat."""
    result: dict[str, Any] = {}
    inputs = gate.Fresh(arms.longest_inputs(cell, family, INPUTS), cell.seed)
    ready_ns = int(system.age_s() * 1e9)
    own = family.method
    with torch.inference_mode():
        report("warmup")
        weights = gate.weights(family)
        method = Arm(family, own, inputs, cell.device["kind"])
        family.calls = 0
        result["first_call_ns"] = method(0)
        gate.check(family, inputs)
        base, why = first_vanilla(cell, family, inputs)
        result |= warm(method)
        if cell.method["name"] == BASELINE:
            result |= solo(method, cell, report)
        elif base is None:
            result |= solo(method, cell, report) | why
        else:
            family.method = own
            result |= fidelity(family, arms.vanilla(), inputs.same(0))
            warm(base)
            mine, *others = planned(method, base, cell, ready_ns)
            result |= compare(method, base, cell, report, mine)
            family.method = own
            if others:
                result["shares"] = [asdict(one) for one in others]
                result["answer"] = share.answer(family, inputs)
        result |= alone(method, cell.device["kind"])
        family.method = own
        gate.check_fresh(family, inputs)
        result |= stages(family, inputs.same(0))
        result["kernel"] = getattr(own, "kernel_used", "torch")
        if weights != gate.weights(family):
            gate.accuse("changes the model's weights")
    return result


def again(
    family: Family, cell: Cell, mine: Share, first: list[float], report: child.Report
) -> dict[str, Any]:
    """The share of a further process, with the gate before and after. Raises Cheat."""
    inputs = gate.Fresh(arms.longest_inputs(cell, family, INPUTS), cell.seed)
    own = family.method
    with torch.inference_mode():
        weights = gate.weights(family)
        method, base = (Arm(family, m, inputs, cell.device["kind"]) for m in (own, arms.vanilla()))
        family.calls = 0
        gate.check(family, inputs)
        warm(method, share.WARM_METHOD)
        warm(base, share.WARM_BASE)
        result = compare(method, base, cell, report, mine)
        family.method = own
        share.check_answer(share.answer(family, inputs), first)
        gate.check_fresh(family, inputs)
        if weights != gate.weights(family):
            gate.accuse("changes the model's weights")
    return result


@dataclass
class Arm:
    """One call of the model with `method` in it, timed: monotonic clock on the CPU, events and one
    synchronisation on a GPU. Called with the number of an input, it returns nanoseconds.

    unseen  nanoseconds of each call that weren't timed: our own work, and nobody else's
    faults  pages that the kernel had to give or find in each call
    wall    on a GPU, nanoseconds of each call by the host's clock, launches included
    """

    family: Family
    method: Method
    inputs: gate.Fresh
    device: str
    unseen: list[int] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)
    last: Tensor | None = None

    def __call__(self, i: int) -> int:
        entered = perf_counter_ns()
        self.family.method = self.method
        ids, sequence = self.inputs.at(i)
        timed = self._on_cuda if self.device == "cuda" else self._on_cpu
        before = page_faults()
        took, logits = timed(ids, sequence)
        self.faults.append(page_faults() - before)
        gate.plain(logits)
        if self.last is not None and torch.equal(logits, self.last):
            gate.accuse("returns a cached output: another input gave the same")
        self.last = logits
        del logits
        self.unseen.append(perf_counter_ns() - entered - took)
        return took

    def forget(self) -> None:
        """Of the calls so far, what was noted beside their time."""
        for noted in (self.unseen, self.faults, self.wall):
            noted.clear()

    def _on_cpu(self, ids: Tensor, sequence: Sequence) -> tuple[int, Tensor]:
        began = perf_counter_ns()
        logits = arms.first_token(self.family, ids, sequence)
        return perf_counter_ns() - began, logits

    def _on_cuda(self, ids: Tensor, sequence: Sequence) -> tuple[int, Tensor]:
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = perf_counter_ns()
        start.record()
        logits = arms.first_token(self.family, ids, sequence)
        end.record()
        torch.cuda.synchronize()
        self.wall.append(perf_counter_ns() - began)
        return int(start.elapsed_time(end) * 1e6), logits


def first_vanilla(
    cell: Cell, family: Family, inputs: gate.Fresh
) -> tuple[Arm | None, dict[str, Any]]:
    """Vanilla's arm, or None and the reason when it doesn't run here: no failure of the method."""
    arm = Arm(family, arms.vanilla(), inputs, cell.device["kind"])
    try:
        first = arm(0)
    except (RuntimeError, MemoryError) as error:
        status = child.memory_status(error)
        if status is None:
            raise
        line = str(error).splitlines()[0]
        return None, {
            "baseline_status": status,
            "baseline_reason": line,
            "ratio_reason": f"vanilla: {line}",
        }
    budget_s = cell.plan.budget_s
    if first > budget_s * 1e9:
        line = f"one call of vanilla takes {first / 1e9:.1f} s, the budget is {budget_s:.0f} s"
        return None, {"baseline_status": "timeout", "baseline_reason": line, "ratio_reason": line}
    return arm, {"baseline_status": "ok"}


def warm(arm: Arm, most: int = WARM_CALLS) -> dict[str, Any]:
    """Calls until the median of three is within 3 % of the three before, or `most`."""
    began = time.monotonic()
    calls: list[int] = []
    settled = False
    while not settled and len(calls) < most:
        calls.append(arm(len(calls)))
        if len(calls) >= 3 and time.monotonic() - began > WARM_SECONDS:
            break
        if len(calls) >= 6:
            now, before = (statistics.median(part) for part in (calls[-3:], calls[-6:-3]))
            settled = abs(now / before - 1) <= WARM_SETTLED
    return {"warmup_calls": len(calls), "warmup_converged": settled}


def planned(method: Arm, base: Arm, cell: Cell, ready_ns: int = 0) -> list[Share]:
    """The shares of the cell's processes, fixed before any ratio is looked at. `ready_ns` is what
    this one took until its model and inputs were there."""
    costs = [max(arm(0), 1) for arm in (method, base)]
    calls = max(1, math.ceil(MIN_SAMPLE_NS / min(costs)))
    pair_s = calls * (sum(costs) + 2 * costs[1] / (AA_EVERY - 1)) / 1e9
    return share.planned(cell.plan, pair_s, share.begin_ns(ready_ns, *costs) / 1e9, calls)


def compare(
    method: Arm, base: Arm, cell: Cell, report: child.Report, mine: Share
) -> dict[str, Any]:
    """The pairs of this process."""
    group = mine.calls
    begun = mine.done + max(0, mine.done - 1) // (AA_EVERY - 1)
    coin = random.Random(f"pairs {cell.seed}{mine.coin}")
    sample = grouped(group)
    out: dict[str, list[int]] = {name: [] for name in ("lat", "base", "aa_first", "aa_second")}
    order = ""
    with still() as stretch:
        method.forget()
        base.forget()
        while len(out["lat"]) < mine.pairs:
            i = begun + len(order)
            report("latency", mine.done + len(out["lat"]), mine.total)
            if i % AA_EVERY == AA_EVERY - 1:
                out["aa_first"].append(sample(base, i))
                out["aa_second"].append(sample(base, i))
                order += "A"
                continue
            method_first = coin.random() < 0.5
            names = ("lat", "base") if method_first else ("base", "lat")
            for name in names:
                out[name].append(sample(method if name == "lat" else base, i))
            order += "M" if method_first else "V"
        gate.check_outside(group * sum(map(sum, out.values())), stretch())
        gate.check_unseen(method.unseen, base.unseen, int(statistics.median(out["lat"])))
    gate.confirm_honest()
    return {f"{name}_samples_ns": values for name, values in out.items()} | {
        "wall_samples_ns": walls(method, group),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "base_page_faults": round(statistics.mean(base.faults)),
        "calls_per_sample": group,
        "pair_order": order,
        "baseline_status": "ok",
        "process_reason": mine.reason,
    }


def solo(method: Arm, cell: Cell, report: child.Report) -> dict[str, Any]:
    """The method's own samples where there is nothing to pair them with."""
    cost = max(method(0), 1)
    group = max(1, math.ceil(MIN_SAMPLE_NS / cost))
    count = max(3, min(cell.plan.pairs, int(cell.plan.budget_s * 1e9 / (group * cost))))
    sample = grouped(group)
    samples = []
    method.forget()
    with still() as stretch:
        for i in range(count):
            report("latency", i, count)
            samples.append(sample(method, i))
        gate.check_outside(group * sum(samples), stretch())
    gate.confirm_honest()
    return {
        "lat_samples_ns": samples,
        "wall_samples_ns": walls(method, group),
        "lat_page_faults": round(statistics.mean(method.faults)),
        "calls_per_sample": group,
    }


def page_faults() -> int:
    """Of this process so far, those that needed no disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def grouped(calls: int) -> Callable[[Arm, int], int]:
    """Short calls in groups, so that a sample is well above the clock's own error."""
    return lambda arm, i: sum(arm(i * calls + j) for j in range(calls)) // calls


def walls(arm: Arm, calls: int) -> list[int] | None:
    """The arm's wall times, grouped as its samples are; None where the clock is the host's."""
    starts = range(0, len(arm.wall), calls)
    return [sum(arm.wall[i : i + calls]) // calls for i in starts] or None
