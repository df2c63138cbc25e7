"""Latency of a method against vanilla: raw samples, in the first process and in further ones that
time their share of the pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any, cast

import torch

from bench.execution import arms, worker
from bench.host import gpu, linux, torch_host
from bench.measure import (
    diagnostics,
    integrity,
    other_work,
    paired_timing,
    physical_floor,
    precision,
    same_engine,
)
from bench.measure.pair_shares import PairShare
from bench.measure.paired_timing import INPUTS, warm_up
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, ProcessGuard
from bench.models.base import Family
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.store.columns import Row

FIRST_PROCESS = "in the first process"


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms and how they were taken, in nanoseconds. In a further process the
    request has its `share` of the pairs, and the first process's `answer`."""
    cell, family, guard, load_ns = loaded(request, report)
    before = gpu.state() if guard.gpu_timer else None
    if "share" in request:
        share = PairShare(**request["share"])
        timed = time_share(family, cell, share, request["answer"], report, guard)
        return timed | _gpu_columns(guard, before)
    facts = torch_host.facts(cell.dtype, cell.device["kind"])
    result = time_method(family, cell, report, guard)
    dense_flops = result.pop("dense_flops")
    if cell.device["kind"] == "cpu":
        peak = physical_floor.peak_gflops(cell.dtype, facts["gemm_gflops"])
        physical_floor.check(result["lat_samples_ns"], dense_flops, peak)
    return {"load_ns": load_ns, **facts, **result, **_gpu_columns(guard, before)}


def _gpu_columns(guard: ProcessGuard, before: gpu.GpuState | None) -> Row:
    """What a GPU was like during the timing; empty on the CPU."""
    if before is None or guard.gpu_timer is None:
        return {}
    flushed = {"gpu_flushed_bytes": guard.gpu_timer.flushed_bytes}
    return cast(Row, gpu.clock_columns(before, gpu.state()) | flushed)


def loaded(
    request: Mapping[str, Any], report: worker.Report
) -> tuple[Cell, Family, ProcessGuard, int]:
    """The request's cell and its model, in a process made ready to time it, and the nanoseconds
    that it took to load."""
    cell = Cell.from_json(request["cell"])
    worker.keep_freed_memory(worker.Kept(request["kept"]))
    arms.prepare(cell, timed=True)
    other_work.adopt_orphans()
    guard = ProcessGuard(cell.device["kind"], report.claim)
    started = perf_counter_ns()
    family = arms.load(cell, arms.method_of(cell))
    return cell, family, guard, perf_counter_ns() - started


@torch.inference_mode()
def time_method(
    family: Family, cell: Cell, report: worker.Report, guard: ProcessGuard
) -> dict[str, Any]:
    """Samples of the family's method and of vanilla in its place, with checks before and after.
    `shares` are for further processes to time, `answer` is what they must answer, `dense_flops`
    what a call's linear layers compute. Raises IntegrityError."""
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, INPUTS))
    ready_ns = int(linux.age_s() * 1e9)
    own, device = family.method, cell.device["kind"]
    method, base = (Arm(family, one, inputs, device, guard) for one in (own, arms.vanilla()))
    report("warmup")
    with integrity.rechecked(family, inputs):
        result: dict[str, Any] = {"first_call_ns": method(0), "timed_tokens": inputs.tokens}
        integrity.check_method(family, inputs)
        with physical_floor.counted() as dense:
            answer = integrity.answer(family, inputs)
        result["dense_flops"] = dense.flops
        is_baseline = cell.method["name"] == BASELINE
        failure = {} if is_baseline else paired_timing.vanilla_failure(base, cell.plan.budget_s)
        result |= failure | warm_up(method)
        if is_baseline or failure:
            result |= paired_timing.time_unpaired(method, cell, report)
        else:
            family.method = own
            result |= diagnostics.fidelity(family, arms.vanilla(), inputs.restored(0))
            result |= precision.estimate(family, inputs.restored(0), cell.dtype)
            warm_up(base)
            twin, columns = same_engine.twin_arm(method)
            share, *others = paired_timing.plan_pairs(method, base, cell, ready_ns, twin)
            result |= columns | same_engine.time_pairs(method, base, twin, cell, report, share)
            if others:
                result["shares"] = [asdict(one) for one in others]
                result["answer"] = answer
        family.method = own
        integrity.check_answer(integrity.answer(family, inputs), answer, "before the timing")
        result |= diagnostics.solo_time(method, device)
        result |= diagnostics.stage_times(family, inputs.current(0), cell.plan.budget_s)
    return result | {"kernel": same_engine.kernel_of(own)}


@torch.inference_mode()
def time_share(
    family: Family,
    cell: Cell,
    share: PairShare,
    expected: Sequence[float],
    report: worker.Report,
    guard: ProcessGuard,
) -> Row:
    """A further process's share of the pairs, with checks. Raises IntegrityError."""
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, INPUTS))
    own, device = family.method, cell.device["kind"]
    method, base = (Arm(family, one, inputs, device, guard) for one in (own, arms.vanilla()))
    with integrity.rechecked(family, inputs):
        integrity.check_method(family, inputs)
        integrity.check_answer(integrity.answer(family, inputs), expected, FIRST_PROCESS)
        warm_up(method, paired_timing.WARM_METHOD)
        warm_up(base, paired_timing.WARM_BASE)
        twin, _ = same_engine.twin_arm(method, paired_timing.WARM_BASE)
        result = same_engine.time_pairs(method, base, twin, cell, report, share)
        family.method = own
        integrity.check_answer(integrity.answer(family, inputs), expected, FIRST_PROCESS)
    return result
