"""Time of each new token of a method against vanilla, and the drift of its predictions from
vanilla's along an answer.

Each arm reads a prompt untimed; then they decode the same forced tokens in turns, answer by answer.
A sample is the mean over some consecutive steps, and the order of each pair is a coin flip. Pairs,
statistics, processes and checks are those of latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.measure import diagnostics, integrity, latency, outside
from bench.measure.forced_answer import DecodingArm, ForcedAnswers, forced, greedy
from bench.measure.paired_timing import (
    AA_EVERY,
    DECIDING_PAIRS,
    PairCost,
    PairShare,
    plan_shares,
)
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, Process
from bench.measure.two_arms import MIN_SAMPLE_NS, TwoArms, vanilla_failure
from bench.models.base import Family
from bench.request.cell import Cell
from bench.rows.columns import Row

STAGE = "decoding"
SAMPLES_OF_ANSWER = 8
"""A sample is an eighth of an answer's steps, so that the pairs of a process cover whole answers;
it has fewer steps if time is short, more if they would take less than MIN_SAMPLE_NS."""


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms in nanoseconds a step, and `fidelity`. In a further process the request
    has its `share` of the pairs. With `outside`, vanilla answers the supervisor."""
    cell, family, process, _ = latency.loaded(request)
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, arms.INPUTS))
    with torch.inference_mode():
        both = both_arms(cell, family, inputs, process, report)
        if "outside" in request:
            outside.serve(report.link, both.base)
            return {}
        if "share" in request:
            with integrity.rechecked(family):
                return both.further(PairShare(**request["share"]))
        return time_method(both)


def time_method(both: TwoArms[DecodingArm]) -> dict[str, Any]:
    """Samples of the family's method and of vanilla in its place, and its `fidelity` along
    vanilla's greedy answer. `shares` are for further processes. Raises IntegrityError,
    Unsupported."""
    method, cell = both.method, both.cell
    family, inputs, own = method.family, method.inputs, method.method
    assert cell.new_tokens is not None
    tokens_out = cell.new_tokens
    both.report("warmup")
    result: dict[str, Any] = {"tokens_out": tokens_out}
    exact, failure = list[tuple[Tensor, Tensor]](), dict[str, Any]()

    def answer(_: int) -> int:
        started = perf_counter_ns()
        exact.append(greedy(family, inputs.restored(0), tokens_out))
        return perf_counter_ns() - started

    with integrity.rechecked(family):  # the timed calls are steps, each of which is compared
        if not both.cell.is_baseline:
            family.method = arms.vanilla()
            failure = vanilla_failure(answer, cell.plan.budget_s)
            family.method = own
        if not exact:
            answer(0)
        else:
            tokens, exact_logits = exact[0]
            logits = forced(family, inputs.restored(0), tokens)
            result["fidelity"] = fidelity(exact_logits, logits)
        for arm in (method,) if both.cell.is_baseline or failure else (method, both.base):
            arm.check_copies()
        steps = math.ceil(method.answers.steps / SAMPLES_OF_ANSWER)
        result |= both.first(plan_pairs, failure, steps)
        family.method = own
        solo_ns, _ = diagnostics.solo_time(method, method.device, method.answers.steps)
        result["timed"]["solo_median_ns"] = result["decode_ns_per_token"] = solo_ns
    return result


def fidelity(exact: Tensor, logits: Tensor) -> Row:
    """KL divergence from exact attention's predictions and share of equal first choices along an
    answer, from logits [B, N, V] of both. Means over all tokens, and over the first and the last
    quarter, whose difference shows a drift."""
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


def plan_pairs(both: TwoArms[DecodingArm], twin: Arm | None) -> list[PairShare]:
    """As `two_arms.plan_pairs`, for steps."""
    method, base, plan = both.method, both.base, both.cell.plan
    steps, budget_s = method.answers.steps, plan.budget_s
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
    cost = PairCost(calls * step_s, (both.ready_ns + prefills_ns + outside_ns) / 1e9, twin_s)
    return plan_shares(plan, cost, calls)


def both_arms(
    cell: Cell, family: Family, inputs: PerturbedInputs, process: Process, report: worker.Report
) -> TwoArms[DecodingArm]:
    """The family's method and vanilla, on the same answers."""
    assert cell.new_tokens is not None
    answers, device = ForcedAnswers(inputs, cell.new_tokens - 1), cell.device["kind"]
    method = DecodingArm(family, family.method, inputs, device, process, answers=answers)
    return TwoArms(method, method.of(arms.vanilla()), cell, report, STAGE)
