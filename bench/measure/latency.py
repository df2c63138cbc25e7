"""Latency of a method against vanilla: raw samples, in the first process and in further ones that
time their share of the pairs."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import torch

from bench.execution import arms, worker
from bench.host import torch_host
from bench.measure import diagnostics, integrity, outside
from bench.measure.paired_timing import PairShare
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, Process
from bench.measure.two_arms import (
    WARM_CALLS_AGAIN,
    TwoArms,
    kernel_of,
    plan_pairs,
    vanilla_failure,
    warm_up,
)
from bench.models.base import Family
from bench.request.cell import Cell


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms in nanoseconds, and details of the sampling. In a further process the
    request has its `share` of the pairs. With `outside`, vanilla answers the supervisor."""
    cell, family, process, load_ns = loaded(request)
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, arms.INPUTS))
    device, scored = cell.device["kind"], None
    if request.get("scored"):
        encoded = arms.inputs(cell, cell.build_task(), family.tokenizer).encoded
        scored = arms.collate([encoded[i] for i in request["scored"]["texts"]], device)
    with torch.inference_mode():
        method = Arm(family, family.method, inputs, device, process)
        both = TwoArms(method, method.of(arms.vanilla()), cell, report, scored=scored)
        if "outside" in request:
            warm_up(both.base, outside.WARM_CALLS)
            outside.serve(report.link, both.base)
            return {}
        if "share" in request:
            with integrity.rechecked(family):
                calls = 1
                if method(0) < outside.LONG_NS:  # for longer calls, only the first process counts
                    integrity.check_method(family, inputs)
                    calls = WARM_CALLS_AGAIN
                result = both.further(PairShare(**request["share"]), calls)
        else:
            result = {"load_ns": load_ns, **torch_host.facts(cell.dtype, device)}
            result |= time_method(both)
        return result | process.gpu_columns()


def loaded(request: Mapping[str, Any]) -> tuple[Cell, Family, Process, int]:
    """The request's cell and its model, this process prepared for timing, and the nanoseconds of
    loading. With `outside`, vanilla is in the model, and no method is imported."""
    cell = Cell.from_json(request["cell"])
    worker.keep_freed_memory(request["by_size"])
    arms.prepare(cell, timed=True)
    integrity.adopt_orphans()
    process = Process(cell.device["kind"])
    started = perf_counter_ns()
    family = arms.load(cell, arms.vanilla() if "outside" in request else arms.method_of(cell))
    return cell, family, process, perf_counter_ns() - started


def time_method(both: TwoArms[Arm]) -> dict[str, Any]:
    """The family's method `timed` against vanilla and against exact attention by its `engine`, and
    columns of the row, with checks before and after. `shares` are for further processes to time.
    Raises IntegrityError."""
    method, cell, family = both.method, both.cell, both.method.family
    inputs, own = method.inputs, family.method
    both.report("warmup")
    with integrity.rechecked(family):
        result: dict[str, Any] = {"first_call_ns": method(0), "timed_tokens": inputs.tokens}
        integrity.check_method(family, inputs)
        failure = {} if both.cell.is_baseline else vanilla_failure(both.base, cell.plan.budget_s)
        family.method = own
        if not both.cell.is_baseline and not failure:
            result |= diagnostics.fidelity(family, arms.vanilla(), inputs.restored(0))
            result |= diagnostics.estimate(family, inputs.restored(0), cell.dtype)
        result |= both.first(plan_pairs, failure)
        family.method = own
        solo_ns, energy = diagnostics.solo_time(method, method.device)
        result["timed"]["solo_median_ns"] = result["prefill_ns"] = solo_ns
        result |= energy
        result |= diagnostics.stage_times(family, inputs.current(0), cell.plan.budget_s)
        if not cell.new_tokens:
            result |= diagnostics.decode_times(family, inputs.current(0), solo_ns)
    return result | {
        "kernel": kernel_of(own),
        "window_layers_exact": len(family.exact_layers) or None,
    }
