"""An engine against vanilla: both read the same prompt and answer with the same number of tokens,
in turns, by the same clock. A pair gives two samples of each: the time to the first token, and the
time of each later one. Pairs, statistics and processes are those of latency.

Vanilla runs in this process, the engine in its own; each waits while the other answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from bench.engines.family import EngineFamily
from bench.errors import RunError
from bench.execution import arms, worker
from bench.host import linux, torch_host
from bench.measure.pair_shares import PairCost, PairShare, plan_shares
from bench.measure.paired_timing import (
    AA_EVERY,
    garbage_collection_off,
    pair_coin,
    pair_progress,
    vanilla_failure,
)
from bench.measure.perturbed_inputs import Input, PerturbedInputs
from bench.models.base import Family
from bench.request.cell import Cell
from bench.status import Status

STAGE = "engine"
WARM_CALLS, LONG_S = 3, 5.0
"""Calls of each arm before its samples; one where it takes longer."""


class Taken(NamedTuple):
    """Nanoseconds of an answer: to its first token, and of each later one, the mean."""

    first: int
    token: int | None


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms in nanoseconds. In a further process the request has its `share` of the
    pairs. With `peak`, the most memory that the engine's process takes for an answer."""
    cell = Cell.from_json(request["cell"])
    began = perf_counter_ns()
    # Before this process is pinned to one core: the engine's may run on others.
    engine = arms.load(cell, arms.method_of(cell))
    assert isinstance(engine, EngineFamily)
    load_ns = perf_counter_ns() - began
    arms.prepare(cell, timed=True)
    inputs = PerturbedInputs(arms.longest_inputs(cell, engine, arms.INPUTS))
    try:
        if request.get("peak"):
            report("memory")
            engine.answer(inputs.restored(0)[0][0], cell.new_tokens or 1, exactly=True)
            return {"whole_peak_bytes": engine.session.peak_bytes()}
        worker.keep_freed_memory()
        family = arms.load(cell, arms.vanilla())
        with torch.inference_mode():
            pairs = Pairs(cell, engine, family, inputs, report)
            if "share" in request:
                return pairs.share(PairShare(**request["share"]))
            facts = torch_host.facts(cell.dtype, cell.device["kind"])
            return facts | {"load_ns": load_ns} | pairs.first()
    finally:
        engine.session.close()


class Pairs:
    """The pairs of one process."""

    def __init__(
        self,
        cell: Cell,
        engine: EngineFamily,
        family: Family,
        inputs: PerturbedInputs,
        report: worker.Report,
    ) -> None:
        self.cell, self.engine, self.family = cell, engine, family
        self.inputs, self.report, self.tokens = inputs, report, cell.new_tokens or 1
        self.ready_ns = int(linux.age_s() * 1e9)

    def of_engine(self, given: Input) -> Taken:
        answer = self.engine.answer(given[0][0], self.tokens, exactly=True)
        if answer.tokens != self.tokens:
            raise RunError(
                f"the engine answered with {answer.tokens} tokens where {self.tokens} are timed"
            )
        return Taken(answer.first_ns, answer.token_ns)

    def of_vanilla(self, given: Input) -> Taken:
        began = perf_counter_ns()
        decoding = self.family.prefill(*given)
        token = decoding.logits.argmax(-1, keepdim=True)
        first = perf_counter_ns()
        for _ in range(self.tokens - 1):
            token = decoding.step(token).argmax(-1, keepdim=True)
        later = self.tokens - 1
        return Taken(first - began, (perf_counter_ns() - first) // later if later else None)

    def first(self) -> dict[str, Any]:
        """The first process's share; `shares` are for further ones."""
        self.report("warmup")
        began = perf_counter_ns()
        result: dict[str, Any] = {"timed_tokens": self.inputs.tokens}
        result["first_call_ns"] = self.of_engine(self.inputs.perturbed(0)).first
        result["kernel"] = self.engine.session.version
        failure = vanilla_failure(lambda i: self.of_vanilla(self.inputs.perturbed(i)).first)
        result["tokens_out"] = self.tokens
        if failure:
            return result | self.unpaired(failure)
        result["warmup_calls"] = calls = self.warm_up()
        pair_ns = (perf_counter_ns() - began) / (calls + 1)
        cost = PairCost(
            pair_ns * AA_EVERY / (AA_EVERY - 1) / 1e9,
            (self.ready_ns + WARM_CALLS * pair_ns) / 1e9,
        )
        # One stage has the time of two: of reading prompts and of decoding.
        plan = self.cell.plan.within(4 * self.cell.plan.budget_s)
        share, *others = plan_shares(plan, cost, 1)
        return result | self.share(share) | {"shares": [asdict(one) for one in others]}

    def warm_up(self) -> int:
        """Returns the number of calls of each arm."""
        for i in range(WARM_CALLS):
            began = perf_counter_ns()
            self.of_engine(self.inputs.perturbed(i))
            self.of_vanilla(self.inputs.perturbed(i))
            if perf_counter_ns() - began > LONG_S * 1e9:
                break
        return i + 1

    def share(self, share: PairShare) -> dict[str, Any]:
        """A share of the pairs, as fields of two comparisons with vanilla."""
        if share.process:
            self.warm_up()
        coin = pair_coin(STAGE, self.cell, share)
        progress = pair_progress(self.report, share, stage=STAGE)
        taken, equal, order = list[tuple[Taken, Taken]](), list[tuple[Taken, Taken]](), ""
        first_pair = share.done + max(0, share.done - 1) // (AA_EVERY - 1)
        with garbage_collection_off():
            while len(taken) < share.pairs:
                progress(len(taken))
                i = first_pair + len(order)
                given = self.inputs.perturbed(i)
                if i % AA_EVERY == AA_EVERY - 1:
                    equal.append((self.of_vanilla(given), self.of_vanilla(given)))
                    order += "A"
                elif coin.random() < 0.5:
                    taken.append((self.of_engine(given), self.of_vanilla(given)))
                    order += "M"
                else:
                    base = self.of_vanilla(given)
                    taken.append((self.of_engine(given), base))
                    order += "V"
        fields = {"pair_order": order, "calls_per_sample": 1, "process_reason": share.reason}
        found: dict[str, Any] = {"baseline_status": Status.OK}
        for name, part in (("timed", 0), ("tpot", 1)):
            if part == 0 or self.tokens > 1:
                found[name] = fields | _sides(taken, equal, part)
        return found

    def unpaired(self, failure: Mapping[str, Any]) -> dict[str, Any]:
        """Samples of the engine alone, where vanilla can't be timed."""
        count = max(3, min(10, self.cell.plan.pairs))
        taken = [self.of_engine(self.inputs.perturbed(i)) for i in range(count)]
        columns = dict(failure)
        reason = columns.pop("reason")
        for name, part in (("timed", 0), ("tpot", 1)):
            if part == 0 or self.tokens > 1:
                samples = [one[part] for one in taken]
                columns[name] = {"samples_ns": samples, "calls_per_sample": 1, "reason": reason}
        return columns


def _sides(
    taken: Sequence[tuple[Taken, Taken]], equal: Sequence[tuple[Taken, Taken]], part: int
) -> dict[str, list[int]]:
    """Both sides of the pairs, as fields of a comparison: of first tokens (0) or later ones (1)."""
    names = ("samples_ns", "base_samples_ns", "aa_first_samples_ns", "aa_second_samples_ns")
    sides = [
        [pair[side][part] or 0 for pair in pairs] for pairs in (taken, equal) for side in (0, 1)
    ]
    return dict(zip(names, sides, strict=True))
