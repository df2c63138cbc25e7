"""Latency of a method against vanilla: raw samples, in the first process and in further ones that
time their share of the pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any, cast

import torch

from bench.execution import arms, worker
from bench.host import gpu, linux, torch_host
from bench.measure import diagnostics, integrity, outside, paired_timing, same_engine, side_effects
from bench.measure.pair_shares import PairShare
from bench.measure.paired_timing import warm_up
from bench.measure.perturbed_inputs import Input, PerturbedInputs
from bench.measure.timed_call import Arm, Process
from bench.models.base import Family
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows.columns import Row


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms and how they were taken, in nanoseconds. In a further process the
    request has its `share` of the pairs. With `outside`, vanilla answers the supervisor."""
    cell, family, process, load_ns = loaded(request, report)
    if "outside" in request:
        return serve_vanilla(report, arms_of(cell, family, process)[1])
    before = gpu.state() if process.gpu_timer else None
    if "share" in request:
        share = PairShare(**request["share"])
        timed = time_share(family, cell, share, report, process, request)
        return timed | _gpu_columns(process, before)
    facts = torch_host.facts(cell.dtype, cell.device["kind"])
    result = time_method(family, cell, report, process, request)
    dense_flops = result.pop("dense_flops")
    if cell.device["kind"] == "cpu":
        peak = integrity.peak_gflops(cell.dtype, facts["gemm_gflops"])
        integrity.check(result["timed"]["samples_ns"], dense_flops, peak)
    return {"load_ns": load_ns, **facts, **result, **_gpu_columns(process, before)}


def _gpu_columns(process: Process, before: gpu.GpuState | None) -> Row:
    """What a GPU was like during the timing; empty on the CPU."""
    if before is None or process.gpu_timer is None:
        return {}
    flushed = {"gpu_flushed_bytes": process.gpu_timer.flushed_bytes}
    return cast(Row, gpu.clock_columns(before, gpu.state()) | flushed)


def loaded(request: Mapping[str, Any], report: worker.Report) -> tuple[Cell, Family, Process, int]:
    """The request's cell and its model, in a process made ready to time it, and the nanoseconds
    that it took to load. With `outside`, vanilla is in the model, and no method is imported."""
    cell = Cell.from_json(request["cell"])
    worker.keep_freed_memory(worker.Kept(request["kept"]))
    arms.prepare(cell, timed=True)
    side_effects.adopt_orphans()
    process = Process(cell.device["kind"])
    started = perf_counter_ns()
    family = arms.load(cell, arms.vanilla() if "outside" in request else arms.method_of(cell))
    return cell, family, process, perf_counter_ns() - started


def serve_vanilla(report: worker.Report, base: Arm) -> dict[str, Any]:
    """Have the supervisor time vanilla in this process, which has imported no method."""
    with torch.inference_mode():
        warm_up(base, outside.WARM_CALLS)
        outside.serve(report.link, base)
    return {}


def arms_of(cell: Cell, family: Family, process: Process) -> tuple[Arm, Arm]:
    """The family's method and vanilla at the same inputs."""
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, arms.INPUTS))
    device = cell.device["kind"]
    method, base = (
        Arm(family, one, inputs, device, process) for one in (family.method, arms.vanilla())
    )
    return method, base


@torch.inference_mode()
def time_method(
    family: Family,
    cell: Cell,
    report: worker.Report,
    process: Process,
    request: Mapping[str, Any],
) -> dict[str, Any]:
    """The family's method `timed` against vanilla and against exact attention by its `engine`, and
    columns of the row, with checks before and after. `shares` are for further processes to time,
    `dense_flops` what a call's linear layers compute. Raises IntegrityError."""
    method, base = arms_of(cell, family, process)
    inputs, own, device = method.inputs, family.method, cell.device["kind"]
    ready_ns = int(linux.age_s() * 1e9)
    report("warmup")
    with integrity.rechecked(family, inputs):
        with integrity.counted() as dense:
            result: dict[str, Any] = {"first_call_ns": method(0), "timed_tokens": inputs.tokens}
        result["dense_flops"] = dense.flops
        integrity.check_method(family, inputs)
        is_baseline = cell.method["name"] == BASELINE
        failure = {} if is_baseline else paired_timing.vanilla_failure(base, cell.plan.budget_s)
        if is_baseline or failure:
            result |= warm_up(method)
            result |= paired_timing.time_unpaired(method, cell, report, failure)
        else:
            family.method = own
            result |= diagnostics.fidelity(family, arms.vanilla(), inputs.restored(0))
            result |= diagnostics.estimate(family, inputs.restored(0), cell.dtype)
            result |= warm_up(method)
            warm_up(base)
            twin, fields = same_engine.twin_arm(method)
            share, *others = paired_timing.plan_pairs(method, base, cell, ready_ns, twin)
            result |= same_engine.time_pairs(method, base, twin, cell, report, share)
            result["engine"] = fields | result.get("engine", {})
            result["shares"] = [asdict(one) for one in others]
            scored = scored_texts(cell, family, request)
            outside.time_here(report, method, share, result["timed"], scored)
        family.method = own
        solo_ns, energy = diagnostics.solo_time(method, device)
        result["timed"]["solo_median_ns"] = result["prefill_ns"] = solo_ns
        result |= energy
        result |= diagnostics.stage_times(family, inputs.current(0), cell.plan.budget_s)
        if not cell.new_tokens:
            result |= diagnostics.decode_times(family, inputs.current(0), solo_ns)
    return result | {
        "kernel": same_engine.kernel_of(own),
        "window_layers_exact": len(family.exact_layers) or None,
    }


@torch.inference_mode()
def time_share(
    family: Family,
    cell: Cell,
    share: PairShare,
    report: worker.Report,
    process: Process,
    request: Mapping[str, Any],
) -> dict[str, Any]:
    """A further process's share of the pairs, with checks. Raises IntegrityError."""
    method, base = arms_of(cell, family, process)
    with integrity.rechecked(family, method.inputs):
        warm_calls = 1
        if method(0) < outside.LONG_NS:  # of longer calls the first process's check counts
            integrity.check_method(family, method.inputs)
            warm_calls = paired_timing.WARM_CALLS_AGAIN
            warm_up(method, warm_calls)
        warm_up(base, warm_calls)
        twin, _ = same_engine.twin_arm(method, warm_calls)
        result = same_engine.time_pairs(method, base, twin, cell, report, share)
        scored = scored_texts(cell, family, request)
        outside.time_here(report, method, share, result["timed"], scored)
    return result


def scored_texts(cell: Cell, family: Family, request: Mapping[str, Any]) -> Input | None:
    """The batch of texts of which the quality stage has kept the first logits, if it has."""
    if not request.get("scored"):
        return None
    encoded = arms.inputs(cell, cell.build_task(), family.tokenizer).encoded
    texts = [encoded[i] for i in request["scored"]["texts"]]
    return arms.collate(texts, cell.device["kind"])
