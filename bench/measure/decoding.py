"""Time of each new token of a method against vanilla, and how far its predictions drift from
vanilla's along an answer.

Each arm reads a prompt untimed; then they decode the same forced tokens in turns, answer by answer.
A sample is the mean over some consecutive steps, and the order of each pair is a coin flip. Pairs,
statistics, processes and checks are those of latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.host import linux
from bench.measure import diagnostics, integrity, latency, outside, paired_timing, same_engine
from bench.measure.forced_answer import DecodingArm, ForcedAnswers, forced, greedy
from bench.measure.pair_shares import DECIDING_PAIRS, PairCost, PairShare, plan_shares
from bench.measure.paired_timing import AA_EVERY, MIN_SAMPLE_NS, WARM_CALLS, warm_up
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, Process
from bench.models.base import Family
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows.columns import FUSED_KERNEL, Row

STAGE = "decoding"
SAMPLES_OF_ANSWER = 8
"""A sample is an eighth of an answer's steps, so that the pairs of a process cover whole answers;
fewer steps where time is short, more where they would take less than MIN_SAMPLE_NS."""


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms in nanoseconds a step, and `fidelity`. In a further process the request
    has its `share` of the pairs. With `outside`, vanilla answers the supervisor."""
    cell, family, process, _ = latency.loaded(request, report)
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, arms.INPUTS))
    if "outside" in request:
        with torch.inference_mode():
            outside.serve(report.link, _arms(family, cell, inputs, process)[1])
        return {}
    if "share" in request:
        share = PairShare(**request["share"])
        return time_share(family, cell, inputs, share, report, process)
    return time_method(family, cell, inputs, report, process)


@torch.inference_mode()
def time_method(
    family: Family,
    cell: Cell,
    inputs: PerturbedInputs,
    report: worker.Report,
    process: Process,
) -> dict[str, Any]:
    """Samples of the family's method and of vanilla in its place, and its `fidelity` along
    vanilla's greedy answer. `shares` are for further processes. Raises IntegrityError,
    Unsupported."""
    assert cell.new_tokens is not None
    ready_ns = int(linux.age_s() * 1e9)
    own, is_baseline = family.method, cell.method["name"] == BASELINE
    report("warmup")
    result: dict[str, Any] = {}
    exact: tuple[Tensor, Tensor] | None = None
    failure: dict[str, Any] = {}
    with integrity.rechecked(family):  # the timed calls are steps, each of which is compared
        if not is_baseline:
            exact, failure = _exact_answer(family, inputs, cell)
        if exact is None:
            greedy(family, inputs.restored(0), cell.new_tokens)
        else:
            tokens, exact_logits = exact
            logits = forced(family, inputs.restored(0), tokens)
            result["fidelity"] = fidelity(exact_logits, logits)
        method, base = _arms(family, cell, inputs, process)
        method.check_copies()
        result |= warm_up(method)
        if is_baseline or failure:
            calls = math.ceil(method.answers.steps / SAMPLES_OF_ANSWER)
            result |= paired_timing.time_unpaired(method, cell, report, failure, calls, STAGE)
        else:
            base.check_copies()
            warm_up(base)
            twin, fields = twin_arm(method)
            share, *others = plan_pairs(method, base, cell, ready_ns, twin)
            result |= same_engine.time_pairs(method, base, twin, cell, report, share, STAGE)
            result["engine"] = fields | result.get("engine", {})
            result["shares"] = [asdict(one) for one in others]
            outside.time_here(report, method, share, result["timed"])
        family.method = own
        solo_ns, _ = diagnostics.solo_time(method, cell.device["kind"], method.answers.steps)
        result["timed"]["solo_median_ns"] = result["decode_ns_per_token"] = solo_ns
    return result | {"tokens_out": cell.new_tokens}


@torch.inference_mode()
def time_share(
    family: Family,
    cell: Cell,
    inputs: PerturbedInputs,
    share: PairShare,
    report: worker.Report,
    process: Process,
) -> dict[str, Any]:
    """A further process's share of the pairs, with checks. Raises IntegrityError."""
    with integrity.rechecked(family):
        method, base = _arms(family, cell, inputs, process)
        warm_up(method, paired_timing.WARM_CALLS_AGAIN)
        warm_up(base, paired_timing.WARM_CALLS_AGAIN)
        twin, _ = twin_arm(method, paired_timing.WARM_CALLS_AGAIN)
        result = same_engine.time_pairs(method, base, twin, cell, report, share, STAGE)
        outside.time_here(report, method, share, result["timed"])
    return result


def fidelity(exact: Tensor, logits: Tensor) -> Row:
    """KL divergence from exact attention's predictions and share of equal first choices along an
    answer: logits [B, N, V] of both. Means over all tokens, and over the first and the last
    quarter, between which a drift shows."""
    log_exact, log_p = (x.float().log_softmax(-1) for x in (exact, logits))
    divergence = (log_exact.exp() * (log_exact - log_p)).sum(-1).mean(0).clamp_min(0)
    agree = (exact.argmax(-1) == logits.argmax(-1)).float().mean(0)
    quarter = math.ceil(len(agree) / 4)
    return {
        "decode_kl_mean": float(divergence.mean()),
        "decode_kl_first_quarter": float(divergence[:quarter].mean()),
        "decode_kl_last_quarter": float(divergence[-quarter:].mean()),
        "decode_top1_agree": float(agree.mean()),
        "decode_top1_first_quarter": float(agree[:quarter].mean()),
        "decode_top1_last_quarter": float(agree[-quarter:].mean()),
    }


def twin_arm(
    method: DecodingArm, most_calls: int = WARM_CALLS
) -> tuple[Arm | None, dict[str, Any]]:
    """As `same_engine.twin_arm`. A twin without its own cache reads new tokens as vanilla
    does, on torch."""
    twin, (ids, _) = method.method.exact_twin(), method.answers.prompt
    if twin is None or twin.kv_cache(method.family.workload(ids.shape[1], len(ids))) is None:
        return None, {"kernel": FUSED_KERNEL}
    return same_engine.twin_arm(method, most_calls)


def plan_pairs(
    method: DecodingArm,
    base: DecodingArm,
    cell: Cell,
    ready_ns: int = 0,
    twin: Arm | None = None,
) -> list[PairShare]:
    """The shares of the cell's processes. `ready_ns`: what this process took until its model and
    inputs were loaded, as a further one will."""
    steps, budget_s = method.answers.steps, cell.plan.budget_s
    method_ns, base_ns = method.usual_ns, base.usual_ns
    prefills_ns, copies_ns = method.prefill_ns + base.prefill_ns, method.copy_ns + base.copy_ns
    # The method takes the steps of each vanilla/vanilla pair too.
    pair_steps = (AA_EVERY + 1) / (AA_EVERY - 1)
    step_s = pair_steps * (method_ns + base_ns + copies_ns / steps) / 1e9
    affordable = int(budget_s / (DECIDING_PAIRS * step_s))
    wanted = min(math.ceil(steps / SAMPLES_OF_ANSWER), affordable)
    calls = max(wanted, math.ceil(MIN_SAMPLE_NS / min(method_ns, base_ns)))
    twin_s = calls * (method_ns + twin.usual_ns) / 1e9 if twin else 0.0
    outside_ns = prefills_ns + calls * outside.cost_ns(method_ns, base_ns)
    cost = PairCost(calls * step_s, (ready_ns + prefills_ns + outside_ns) / 1e9, twin_s)
    return plan_shares(cell.plan, cost, calls)


def _exact_answer(
    family: Family, inputs: PerturbedInputs, cell: Cell
) -> tuple[tuple[Tensor, Tensor] | None, dict[str, Any]]:
    """Vanilla's greedy answer to the first prompt, tokens [B, N] and logits [B, N, V], and columns
    that say why its steps can't be timed, empty where they can."""
    answer: tuple[Tensor, Tensor] | None = None

    def read(_: int) -> int:
        nonlocal answer
        started = perf_counter_ns()
        answer = greedy(family, inputs.restored(0), cell.new_tokens or 0)
        return perf_counter_ns() - started

    own, family.method = family.method, arms.vanilla()
    failure = paired_timing.vanilla_failure(read, cell.plan.budget_s)
    family.method = own
    return answer, failure


def _arms(
    family: Family, cell: Cell, inputs: PerturbedInputs, process: Process
) -> tuple[DecodingArm, DecodingArm]:
    """The family's method and vanilla, on the same answers."""
    assert cell.new_tokens is not None
    answers, device = ForcedAnswers(inputs, cell.new_tokens - 1), cell.device["kind"]
    method, base = (
        DecodingArm(family, one, inputs, device, process, answers=answers)
        for one in (family.method, arms.vanilla())
    )
    return method, base
