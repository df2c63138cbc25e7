"""Latency of the method against vanilla in one process: same weights, same inputs, pairs whose
order is a seeded coin flip, every fourth pair vanilla/vanilla. The parent judges the samples."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.cell import BASELINE, Cell
from bench.children import arms, child, gate
from bench.children.fidelity import fidelity
from bench.models.base import Family
from methods.base import Call, Layer, Method, Sequence

Input = tuple[Tensor, Sequence]
Arm = Callable[[int], int]
"""Runs on input number i and returns nanoseconds."""

INPUTS = 4
DECODED_TOKENS = 16
AA_EVERY = 4
MIN_SAMPLE_NS = 2_000_000
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 10.0, 0.03


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """Raw samples of both arms and how they were taken, in nanoseconds."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    began = time.perf_counter_ns()
    family = arms.load(cell, arms.method_of(cell))
    result: dict[str, Any] = {"load_ns": time.perf_counter_ns() - began}
    inputs = arms.longest_inputs(cell, family, INPUTS)
    own = family.method
    with torch.inference_mode():
        report("warmup")
        method = timed(family, own, inputs, cell.device["kind"])
        result["first_call_ns"] = method(0)
        gate.check(family, *inputs[0])
        base, why = first_vanilla(cell, family, inputs)
        result |= warm(method)
        if cell.method["name"] == BASELINE:
            result |= solo(method, cell, report)
        elif base is None:
            result |= solo(method, cell, report) | why
        else:
            family.method = own
            result |= fidelity(family, arms.vanilla(), inputs[0])
            warm(base)
            result |= compare(method, base, cell, report)
        family.method = own
        result |= stages(family, inputs[0])
    return result


def timed(family: Family, method: Method, inputs: list[Input], device: str) -> Arm:
    """One call of the model with `method` in it, timed: monotonic clock on the CPU, events and one
    synchronisation on a GPU."""

    def on_cpu(i: int) -> int:
        family.method = method
        ids, sequence = inputs[i % len(inputs)]
        began = time.perf_counter_ns()
        arms.first_token(family, ids, sequence)
        return time.perf_counter_ns() - began

    def on_cuda(i: int) -> int:
        family.method = method
        ids, sequence = inputs[i % len(inputs)]
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        start.record()
        arms.first_token(family, ids, sequence)
        end.record()
        torch.cuda.synchronize()
        return int(start.elapsed_time(end) * 1e6)

    return on_cuda if device == "cuda" else on_cpu


def first_vanilla(
    cell: Cell, family: Family, inputs: list[Input]
) -> tuple[Arm | None, dict[str, Any]]:
    """Vanilla's arm, or None and the reason when it doesn't run here: no failure of the method."""
    arm = timed(family, arms.vanilla(), inputs, cell.device["kind"])
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


def warm(arm: Arm) -> dict[str, Any]:
    """Calls until the median of three is within 3 % of the three before."""
    began = time.monotonic()
    calls: list[int] = []
    settled = False
    while not settled and len(calls) < WARM_CALLS:
        calls.append(arm(len(calls)))
        if len(calls) >= 3 and time.monotonic() - began > WARM_SECONDS:
            break
        if len(calls) >= 6:
            now, before = (statistics.median(part) for part in (calls[-3:], calls[-6:-3]))
            settled = abs(now / before - 1) <= WARM_SETTLED
    return {"warmup_calls": len(calls), "warmup_converged": settled}


def compare(method: Arm, base: Arm, cell: Cell, report: child.Report) -> dict[str, Any]:
    """The pairs. Their number is fixed from the warm-up, before any ratio is looked at."""
    costs = [max(arm(0), 1) for arm in (method, base)]
    group = max(1, math.ceil(MIN_SAMPLE_NS / min(costs)))
    per_pair = group * (sum(costs) + 2 * costs[1] / (AA_EVERY - 1)) / 1e9
    pairs = max(1, min(cell.plan.pairs, int(cell.plan.budget_s / per_pair)))
    coin = random.Random(f"pairs {cell.seed}")
    sample = grouped(group)
    out: dict[str, list[int]] = {name: [] for name in ("lat", "base", "aa_first", "aa_second")}
    order = ""
    with still() as stretch:
        while len(out["lat"]) < pairs:
            i = len(order)
            report("latency", len(out["lat"]), pairs)
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
    return {f"{name}_samples_ns": values for name, values in out.items()} | {
        "calls_per_sample": group,
        "pair_order": order,
        "baseline_status": "ok",
    }


def solo(method: Arm, cell: Cell, report: child.Report) -> dict[str, Any]:
    """The method's own samples where there is nothing to pair them with."""
    cost = max(method(0), 1)
    group = max(1, math.ceil(MIN_SAMPLE_NS / cost))
    count = max(3, min(cell.plan.pairs, int(cell.plan.budget_s * 1e9 / (group * cost))))
    sample = grouped(group)
    samples = []
    with still() as stretch:
        for i in range(count):
            report("latency", i, count)
            samples.append(sample(method, i))
        gate.check_outside(group * sum(samples), stretch())
    return {"lat_samples_ns": samples, "calls_per_sample": group}


def grouped(calls: int) -> Callable[[Arm, int], int]:
    """Short calls in groups, so that a sample is well above the clock's own error."""
    return lambda arm, i: sum(arm(i * calls + j) for j in range(calls)) // calls


@contextlib.contextmanager
def still() -> Iterator[Callable[[], int]]:
    """No garbage collection while something is timed; yields the nanoseconds since it began."""
    gc.collect()
    gc.freeze()
    gc.disable()
    began = time.perf_counter_ns()
    try:
        yield lambda: time.perf_counter_ns() - began
    finally:
        gc.enable()
        gc.unfreeze()


def stages(family: Family, batch: Input) -> dict[str, Any]:
    """Where the method's time goes: inside its attention, in its walk over the layers, until the
    first token, and for each token after it."""
    ids, sequence = batch
    attend: list[int] = []
    encode: list[int] = []
    method = family.method
    with still():
        for _ in range(3):
            family.method = watch = Stopwatch(method)
            began = time.perf_counter_ns()
            family.encode(ids, sequence)
            encode.append(time.perf_counter_ns() - began)
            attend.append(sum(watch.inside))
    family.method = method
    return {
        "attend_ns": int(statistics.median(attend)),
        "encode_ns": int(statistics.median(encode)),
    }


@dataclass(frozen=True)
class Stopwatch(Method):
    """A method that notes the nanoseconds spent inside its own attention."""

    method: Method
    inside: list[int] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        began = time.perf_counter_ns()
        out = self.method.attend(query, key, value, call)
        self.inside.append(time.perf_counter_ns() - began)
        return out

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        return self.method.encode(layers, hidden, sequence)
