"""An engine against vanilla: both read the same prompt and answer with the same number of tokens,
in turns, by the same clock. An answer has two times: the time to the first token, and the time of
each later token. Pairs, statistics and processes are those of latency.

Vanilla runs in this process, the engine in a separate one; each waits while the other answers. A
server may be compared with another server in the place of vanilla.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from bench.engines.base import Answer
from bench.engines.family import EngineFamily
from bench.engines.openai import OpenAI
from bench.errors import RunError
from bench.execution import arms, worker
from bench.host import torch_host
from bench.measure.paired_timing import AA_EVERY, PairCost, PairShare, plan_shares
from bench.measure.perturbed_inputs import Input, PerturbedInputs
from bench.measure.timed_call import Arm
from bench.measure.two_arms import WARM_CALLS_AGAIN, TwoArms, vanilla_failure
from bench.models.base import Family
from bench.request.cell import Cell
from methods.base import Method

QUESTION_TOKENS, REPEATS = 16, 3
OF_CALLS = ("engine", "lat_page_faults", "base_page_faults", "wall_samples_ns")
"""Columns that describe calls in this process; an engine has none of them."""


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms in nanoseconds. In a further process the request has its `share` of the
    pairs. With `peak`, the most memory that the engine's process takes for an answer."""
    cell = Cell.from_json(request["cell"])
    began = perf_counter_ns()
    # Before this process is pinned to one core, since the engine may run on other cores.
    engine = _loaded(cell)
    load_ns = perf_counter_ns() - began
    of_base = cell.baseline()
    base_engine = _loaded(of_base) if of_base.is_engine else None
    arms.prepare(cell, timed=True)
    inputs = PerturbedInputs(arms.longest_inputs(cell, engine, arms.INPUTS))
    tokens = cell.new_tokens or 1
    try:
        if request.get("peak"):
            report("memory")
            engine.answer(inputs.restored(0)[0][0], tokens, exactly=True)
            return {"whole_peak_bytes": engine.session.peak_bytes()}
        worker.keep_freed_memory()
        arm = partial(AnswerArm, inputs=inputs, device="cpu")
        method = arm(engine, engine.method, answer=partial(of_engine, engine, tokens))
        if base_engine is None:
            family = arms.load(cell, arms.vanilla())
            base = arm(family, family.method, answer=partial(of_vanilla, family, tokens))
        else:
            answer = partial(of_engine, base_engine, tokens)
            base = arm(base_engine, base_engine.method, answer=answer)
        both = TwoArms(method, base, cell, report, "engine")
        with torch.inference_mode():
            if "share" in request:
                return _columns(both, both.further(PairShare(**request["share"])))
            facts = torch_host.facts(cell.dtype, cell.device["kind"])
            report("warmup")
            facts |= {"load_ns": load_ns, "timed_tokens": inputs.tokens, "tokens_out": tokens}
            facts |= {"first_call_ns": method(0), "kernel": engine.session.version}
            failure = vanilla_failure(base)
            found = facts | _columns(both, both.first(plan_pairs, failure))
            if isinstance(engine.method, OpenAI):
                found["prefix_first_token_ratio"] = repeated_prefix(engine, inputs)
            return found
    finally:
        for each in filter(None, (engine, base_engine)):
            each.session.close()


def _loaded(cell: Cell) -> EngineFamily:
    engine = arms.load(cell, arms.method_of(cell))
    assert isinstance(engine, EngineFamily)
    return engine


def repeated_prefix(engine: EngineFamily, inputs: PerturbedInputs) -> float:
    """The median time to the first token of a prompt that differs from the previous one only in its
    last tokens, such as a second question on a text, over that of a new prompt. Below 1 if the
    server keeps prefixes."""
    new_ns, again_ns = list[int](), list[int]()
    for i in range(REPEATS):
        ids = inputs.perturbed(i)[0][0].clone()
        new_ns.append(engine.answer(ids, 1, exactly=True).first_ns)
        ids[-QUESTION_TOKENS:] = ids[-QUESTION_TOKENS:].roll(1)
        again_ns.append(engine.answer(ids, 1, exactly=True).first_ns)
    return statistics.median(again_ns) / statistics.median(new_ns)


def of_engine(engine: EngineFamily, tokens: int, given: Input) -> Answer:
    answer = engine.answer(given[0][0], tokens, exactly=True)
    if answer.tokens != tokens:
        raise RunError(f"the engine answered with {answer.tokens} tokens where {tokens} are timed")
    return answer


def of_vanilla(family: Family, tokens: int, given: Input) -> Answer:
    began = perf_counter_ns()
    decoding = family.prefill(*given)
    token = decoding.logits.argmax(-1, keepdim=True)
    first_ns = perf_counter_ns() - began
    for _ in range(tokens - 1):
        token = decoding.step(token).argmax(-1, keepdim=True)
    return Answer("", tokens, first_ns, perf_counter_ns() - began)


@dataclass(eq=False)
class AnswerArm(Arm):
    """Whole answers. Called with the number of an input, it returns the nanoseconds to the first
    token; `took` has those of whole answers, `later` those of each later token."""

    answer: Callable[[Input], Answer] = field(kw_only=True)
    later: list[int | None] = field(default_factory=list, init=False)
    in_process = False
    most_calls = 0

    def __call__(self, i: int, drawn: Tensor | None = None) -> int:
        answer = self.answer(self.inputs.perturbed(i, drawn))
        self.took.append(answer.last_ns)
        self.later.append(answer.token_ns)
        self.waits.append(0)
        self.faults.append(0)
        return answer.first_ns

    def reset(self) -> None:
        super().reset()
        self.later.clear()

    def twin(self) -> Method | None:
        return None


def plan_pairs(both: TwoArms[AnswerArm], _: Arm | None) -> list[PairShare]:
    """As `two_arms.plan_pairs`, for whole answers."""
    pair_ns, plan = both.method.usual_ns + both.base.usual_ns, both.cell.plan
    cost = PairCost(
        pair_ns * AA_EVERY / (AA_EVERY - 1) / 1e9,
        (both.ready_ns + WARM_CALLS_AGAIN * pair_ns) / 1e9,
    )
    # This stage has the time of two: that for reading prompts and that for decoding.
    return plan_shares(plan.within(4 * plan.budget_s), cost, 1)


def _columns(both: TwoArms[AnswerArm], result: dict[str, Any]) -> dict[str, Any]:
    """The columns of `result`, and `tpot`: samples of later tokens as fields of a comparison."""
    for name in OF_CALLS:
        result.pop(name, None)
    if (both.cell.new_tokens or 1) > 1:
        own = {"samples_ns": [*both.method.later]}
        if order := result["timed"].get("pair_order"):
            names = ("base_samples_ns", "aa_first_samples_ns", "aa_second_samples_ns")
            own |= {name: [] for name in names}
            base = iter(both.base.later)
            for letter in order:
                for name in names[1:] if letter == "A" else names[:1]:
                    own[name].append(next(base))
        result["tpot"] = result["timed"] | own
    return result
