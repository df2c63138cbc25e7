"""The arms of a cell in one process: the method, vanilla, and exact attention on the engine of the
method. They are warmed up, and time this process's share of the cell's pairs."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import torch
from safetensors.torch import load, save

from bench.execution import arms, worker
from bench.host import linux
from bench.measure import integrity
from bench.measure.paired_timing import (
    AA_EVERY,
    PairCost,
    PairShare,
    plan_shares,
    sample_alone,
    sample_pairs,
)
from bench.measure.perturbed_inputs import Input
from bench.measure.timed_call import Arm
from bench.request.cell import Cell
from bench.rows.columns import FUSED_KERNEL, Row
from bench.status import Status
from methods.base import Method

MIN_SAMPLE_NS = 2_000_000
"""Shorter calls are grouped into samples of this length, well above the clock's resolution."""
WARM_CALLS, WARM_SECONDS, WARM_SETTLED = 20, 5.0, 0.03
WARM_CALLS_AGAIN = 2
"""Calls of each arm before the first sample of a further process; one if calls are long."""
CHECK_CALLS = 2
"""Calls of the method in the checks of a further process; none if calls are long."""
OUTSIDE_WARM_CALLS = 1
"""Warm-up calls of vanilla in its separate process, before the supervisor requests samples."""

A = TypeVar("A", bound=Arm)


@dataclass(frozen=True)
class TwoArms(Generic[A]):
    """The method and vanilla of a cell.

    stage     the stage whose progress is reported
    scored    a batch that the quality stage has answered, to be answered again
    ready_ns  time until this process had loaded its model and inputs; a further one takes the same
    """

    method: A
    base: A
    cell: Cell
    report: worker.Report
    stage: str = "latency"
    scored: Input | None = None
    ready_ns: int = field(default_factory=lambda: int(linux.age_s() * 1e9), init=False)

    def first(self, plan: Plan[A], failure: Mapping[str, Any], calls: int = 1) -> dict[str, Any]:
        """As `timed`, with the `engine`'s kernel, and the `shares` of further processes by the
        `plan`. For vanilla itself, or with a `failure` (the reason why vanilla can't be timed), as
        `alone`. Raises IntegrityError."""
        result: dict[str, Any] = {**warm_up(self.method)}
        if self.cell.is_baseline or failure:
            return result | self.alone(failure, calls)
        warm_up(self.base)
        twin, fields = twin_arm(self.method)
        share, *others = plan(self, twin)
        result |= self.timed(twin, share)
        result["engine"] = fields | result.get("engine", {})
        return result | {"shares": [asdict(one) for one in others]}

    def further(self, share: PairShare, calls: int = WARM_CALLS_AGAIN) -> dict[str, Any]:
        """As `timed`, after `calls` calls of each arm. Raises IntegrityError."""
        for arm in (self.method, self.base):
            warm_up(arm, calls - len(arm.took))
        twin, _ = twin_arm(self.method, calls)
        return self.timed(twin, share)

    def outside(self, calls: int = OUTSIDE_WARM_CALLS) -> dict[str, Any]:
        """Vanilla answers the supervisor, after some calls. It has no columns."""
        warm_up(self.base, calls)
        answer_outside(self.report.link, self.base)
        return {}

    def timed(self, twin: Arm | None, share: PairShare) -> dict[str, Any]:
        """`timed`: the share's pairs with vanilla, then `engine`: its pairs with the exact twin, as
        fields of comparisons; and columns of the row. Raises IntegrityError."""
        method, base = self.method, self.base
        coin, progress = self._coin("pairs", share), self._progress(share)
        samples = sample_pairs(method, base, share, coin, progress, AA_EVERY)
        timed = {
            **samples.fields_to_vanilla(),
            "calls_per_sample": share.calls,
            "process_reason": share.reason,
        }
        result: dict[str, Any] = {
            "timed": timed,
            "wall_samples_ns": method.walls(share.calls),
            "lat_page_faults": round(statistics.mean(method.faults)),
            "base_page_faults": round(statistics.mean(base.faults)),
            "baseline_status": Status.OK,
            "answers": {"rel_l2": samples.rel_l2, "top1": samples.top1},
            "notes": method.process.notes,
        }
        if twin is not None:
            of_twin = replace(share, pairs=share.twin_pairs)
            coin, progress = self._coin("same engine", share), self._progress(share, share.pairs)
            result["engine"] = sample_pairs(method, twin, of_twin, coin, progress).fields()
        time_outside(self.report, method, share, timed, self.scored)
        return result

    def alone(self, failure: Mapping[str, Any], calls: int = 1) -> dict[str, Any]:
        """Samples of the method alone, each of at least `calls` calls."""
        method, plan, columns = self.method, self.cell.plan, dict(failure)
        calls = max(calls, math.ceil(MIN_SAMPLE_NS / method.usual_ns))
        fitting = int(plan.budget_s * 1e9 / (calls * method.usual_ns))
        count = max(3, min(plan.pairs, fitting))
        samples = sample_alone(method, count, calls, lambda i: self.report(self.stage, i, count))
        timed = {"samples_ns": samples, "calls_per_sample": calls}
        return {
            "timed": timed | {"reason": columns.pop("reason", None)},
            "wall_samples_ns": method.walls(calls),
            "lat_page_faults": round(statistics.mean(method.faults)),
            "notes": method.process.notes,
            **columns,
        }

    def _coin(self, purpose: str, share: PairShare) -> random.Random:
        """Random numbers that decide the order of each pair of a process."""
        process = f" {share.process}" if share.process else ""
        return random.Random(f"{purpose} {self.cell.seed}{process}")

    def _progress(self, share: PairShare, before: int = 0) -> Callable[[int], None]:
        """Reports the number of finished pairs in all processes; this one has timed `before` pairs
        of the other kind."""
        ahead, total, note = share.ahead + before, share.total, share.note
        return lambda done: self.report(self.stage, ahead + done, total, note)


Plan = Callable[[TwoArms[A], Arm | None], list[PairShare]]
"""The shares of a cell's processes, from the last calls of both arms and of the exact twin."""


def warm_up(arm: Arm, most: int = WARM_CALLS) -> Row:
    """Calls an arm until the median of three calls is within 3 % of the three before, another call
    would exceed WARM_SECONDS, or `most` calls; an arm that was never called is called twice."""
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
    why there is no ratio; empty if it can be timed."""
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


def plan_pairs(both: TwoArms[A], twin: Arm | None) -> list[PairShare]:
    """The `Plan` of timed calls."""
    method_ns, base_ns, *twin_ns = (arm.usual_ns for arm in (both.method, both.base, twin) if arm)
    calls = max(1, math.ceil(MIN_SAMPLE_NS / min(method_ns, base_ns, *twin_ns)))
    each_ns = method_ns + base_ns + sum(twin_ns)
    if method_ns < LONG_NS:
        warm_ns = CHECK_CALLS * method_ns + WARM_CALLS_AGAIN * each_ns
        warm_ns += outside_cost_ns(method_ns, base_ns)
    else:
        warm_ns = each_ns
    cost = PairCost(
        pair_s=calls * (method_ns + base_ns + 2 * base_ns / (AA_EVERY - 1)) / 1e9,
        startup_s=(both.ready_ns + warm_ns) / 1e9,
        twin_s=calls * (method_ns + twin_ns[0]) / 1e9 if twin_ns else 0.0,
    )
    return plan_shares(both.cell.plan, cost, calls)


def kernel_of(method: Method) -> str:
    """Names of the kernels that ran the method's calls so far."""
    return getattr(method, "kernel_used", FUSED_KERNEL)


def twin_arm(method: Arm, most_calls: int = WARM_CALLS) -> tuple[Arm | None, dict[str, Any]]:
    """The exact twin of a method that has been called before, warmed up, and its kernel as a field
    of the comparison. None if the twin is vanilla itself, or, with the reason, if exact attention
    can't run on that engine."""
    twin = method.twin()
    if twin is None:
        return None, {"kernel": FUSED_KERNEL}
    arm = method.of(twin)
    warm_up(arm, most_calls)
    if twin.exact_twin() is None:
        used, own = kernel_of(twin), kernel_of(method.method)
        reason = f"the method ran on {own}, exact attention on {used}"
        return None, {"reason": reason}
    return arm, {"kernel": kernel_of(twin)}


# Calls that the supervisor times by its own clock, from its request to the answer. The method's
# process answers some calls after its pairs. A process with vanilla, which never imports the
# method, does too and draws the inputs: no process sees an input before its answer is requested.

OUTSIDE_SAMPLE_NS = 10_000_000
"""Shorter calls are grouped into samples of this length, well above the time of a message."""
OUTSIDE_SAMPLES, PAIRS_PER_SAMPLE = 4, 3
"""Samples of each arm in each process, at most one for every three pairs. One more before them
warms the caches and is dropped."""
LONG_NS, LONG_SAMPLES = 1_000_000_000, 1
"""Number of samples for calls of at least this length; none of them is dropped."""
ALONE_SAMPLES = 12
"""Samples of short calls if one process times all pairs, at most one for every pair: there are no
other processes to average out disturbances."""


def outside_cost_ns(method_ns: int, base_ns: int) -> int:
    """Nanoseconds that the samples of one round take, given those of one call of each arm."""
    return (1 + _outside_samples(base_ns)) * (method_ns + base_ns) + OUTSIDE_WARM_CALLS * base_ns


def _outside_samples(call_ns: int) -> int:
    return OUTSIDE_SAMPLES if call_ns < LONG_NS else LONG_SAMPLES


def time_outside(
    report: worker.Report,
    method: Arm,
    share: PairShare,
    timed: Mapping[str, Any],
    scored: Input | None = None,
) -> None:
    """Have the supervisor time this process's method, whose pairs are `timed`. For long calls, and
    on a GPU, where vanilla's process has to load the model itself, only in the first process."""
    fastest = min(*timed["samples_ns"], *timed["base_samples_ns"])
    if share.process and (method.device == "cuda" or fastest >= LONG_NS):
        return
    pairs = len(timed["samples_ns"])
    samples = max(1, min(_outside_samples(fastest), pairs // PAIRS_PER_SAMPLE))
    if share.pairs + share.twin_pairs == share.total and fastest < LONG_NS:
        samples = max(1, min(ALONE_SAMPLES, pairs, method.most_calls - 1))
    calls = min(math.ceil(OUTSIDE_SAMPLE_NS / max(1, fastest)), method.most_calls // (samples + 1))
    if calls:
        dropped = int(fastest < LONG_NS)
        report.send("outside", calls=calls, samples=samples, dropped=dropped, process=share.process)
        answer_outside(report.link, method, scored)


def answer_outside(link: int, arm: Arm, scored: Input | None = None) -> None:
    """Answer the supervisor's requests until it sends `stop`. A request is a word of four letters
    and its content. `scored` is a batch that the quality stage has answered."""
    arm.reset()
    with Connection(os.dup(link)) as connection:
        while True:
            try:
                message = connection.recv_bytes()
            except EOFError:
                return
            request, content = message[:4], message[4:]
            reply = b""  # measures the time of a message
            if request == b"stop":
                return
            if request == b"draw":
                reply = save(arm.drawn(int(content)))
            elif request == b"read":
                arm.read(load(content))
            elif request == b"call":
                reply = save(arm.answered(load(content)))
            elif request == b"text" and scored is not None:
                arm.family.method = arm.method
                logits = arms.first_token(arm.family, *scored)
                reply = save({"answer": torch.tensor(integrity.projected(logits))})
            connection.send_bytes(reply)
