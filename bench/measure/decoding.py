"""Time of each new token of a method against vanilla, and the drift of its predictions from
vanilla's along an answer.

Each arm reads a prompt untimed; then they decode the same forced tokens in turns, answer by answer.
A sample is the mean over some consecutive steps, and the order of each pair is a coin flip. Pairs,
statistics, processes and checks are those of latency.

Shapes: B batch, N new tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter_ns
from typing import Any, Self, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.execution import arms, worker
from bench.measure import integrity, latency
from bench.measure.integrity import fail_check
from bench.measure.paired_timing import (
    AA_EVERY,
    DECIDING_PAIRS,
    PairCost,
    PairShare,
    plan_shares,
)
from bench.measure.perturbed_inputs import Input, PerturbedInputs
from bench.measure.timed_call import Arm, Drawn, Forward, Process
from bench.measure.two_arms import (
    MIN_SAMPLE_NS,
    TwoArms,
    outside_cost_ns,
    vanilla_failure,
)
from bench.models.base import Decoding, Family
from bench.request.cell import Cell
from bench.rows.columns import Row
from methods.base import Method

T = TypeVar("T")
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
            return both.outside(0)
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
        solo_ns, _ = latency.solo_time(method, method.device, method.answers.steps)
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
    outside_ns = prefills_ns + calls * outside_cost_ns(method_ns, base_ns)
    cost = PairCost(calls * step_s, (both.ready_ns + prefills_ns + outside_ns) / 1e9, twin_s)
    return plan_shares(plan, cost, calls)


def both_arms(
    cell: Cell, family: Family, inputs: PerturbedInputs, process: Process, report: worker.Report
) -> TwoArms[DecodingArm]:
    """The family's method and vanilla, on the same answers."""
    assert cell.new_tokens is not None
    answers, device = ForcedAnswers(inputs, cell.new_tokens - 1), cell.device["kind"]
    method = DecodingArm(family, family.method, inputs, device, process, answers=answers)
    return TwoArms(method, method.of(arms.vanilla()), cell, report, "decoding")


# Decoding of a forced answer: every arm reads the same prompt and then the same tokens, so that all
# do equal work. An end token among them doesn't end the answer. A prompt is read once in a process:
# each answer begins with a copy of the prompt's cache.

SEED = 1
"""Seeds for each prompt and step, so that a method draws the same numbers in each answer."""
CHECKED_STEPS = 4
"""Steps after reading a prompt that are compared with steps after copying its cache."""


def greedy(family: Family, prompt: Input, new_tokens: int) -> tuple[Tensor, Tensor]:
    """The likeliest next tokens [B, N], and the logits [B, N, V] by which they were chosen."""
    decoding = family.prefill(*prompt)
    tokens, logits = [decoding.logits.argmax(-1, keepdim=True)], [decoding.logits]
    while len(tokens) < new_tokens:
        logits.append(decoding.step(tokens[-1]))
        tokens.append(logits[-1].argmax(-1, keepdim=True))
    return torch.cat(tokens, 1), torch.stack(logits, 1)


def forced(family: Family, prompt: Input, tokens: Tensor) -> Tensor:
    """[B, N, V]: the logits before each of the tokens [B, N], given those before it. Raises
    NotFiniteError."""
    decoding = family.prefill(*prompt)
    steps = (decoding.step(token[:, None]) for token in tokens[:, :-1].unbind(1))
    logits = torch.stack([decoding.logits, *steps], 1)
    if found := integrity.not_finite(logits):
        raise integrity.NotFiniteError(f"the model gave {found} as logits of a new token")
    return logits


class ForcedAnswers:
    """Answers of `steps` steps to one prompt that no method has read before. Their tokens are drawn
    at random from the prompt, so that steps rarely repeat an input."""

    def __init__(self, inputs: PerturbedInputs, steps: int) -> None:
        self.inputs, self.steps = inputs, steps
        ids, sequence = inputs.perturbed(0)
        self.prompt: Input = ids.clone(), sequence
        self.answers: list[Tensor] = []

    def token(self, number: int, step: int) -> Tensor:
        """[B, 1]"""
        while len(self.answers) <= number:
            self.answers.append(self.drawn(self.steps))
        return self.answers[number][:, step : step + 1]

    def drawn(self, count: int) -> Tensor:
        """[B, count] tokens of the prompt, drawn without a seed."""
        ids, _ = self.prompt
        return ids[:, self.inputs.random.choices(range(ids.shape[1]), k=count)]


@dataclass(eq=False)
class DecodingArm(Arm):
    """One timed step of decoding with `method` in the model, independent of the number given to the
    call: an answer's steps follow one another after the prompt, whose cache is copied untimed, and
    then the next answer begins. Arms of the same `answers` read equal tokens if they have made the
    same number of calls since their last `reset`.

    kept          the prompt as it was read, before any step
    number, step  the current answer, and the number of its steps taken
    prefill_ns    nanoseconds of reading the prompt
    copy_ns       nanoseconds of the last copy
    """

    answers: ForcedAnswers = field(kw_only=True)
    kept: Decoding | None = None
    decoding: Decoding | None = field(default=None, init=False)
    number: int = field(default=0, init=False)
    step: int = field(default=0, init=False)
    prefill_ns: int = field(default=0, init=False)
    copy_ns: int = field(default=0, init=False)

    def of(self, method: Method) -> Self:
        return replace(self, method=method, kept=None)

    def reset(self) -> None:
        super().reset()
        self.decoding, self.number = None, len(self.answers.answers)

    def draw(self, i: int, calls: int) -> Drawn:
        return [None] * calls  # the tokens follow from the number of calls that an arm has made

    def twin(self) -> Method | None:
        """None also for a twin without its own cache, which reads new tokens in the same way as
        vanilla."""
        twin, (ids, _) = super().twin(), self.answers.prompt
        workload = self.family.workload(ids.shape[1], len(ids))
        return None if twin is None or twin.kv_cache(workload) is None else twin

    def prepared(self, i: int, drawn: Tensor | None = None) -> Forward:
        if self.decoding is None or self.step == self.answers.steps:
            self.number += self.decoding is not None
            self.decoding = None
            self.last.clear()
            gc.collect()  # the last answer's cache, before the next one is filled
            self.decoding, self.step = self._begun(), 0
        forward = self._step(self.decoding, self.answers.token(self.number, self.step))
        self.step += 1
        return forward

    @property
    def most_calls(self) -> int:
        return self.answers.steps

    def drawn(self, calls: int) -> dict[str, Tensor]:
        """Random tokens [B, calls], and before the first of them a prompt."""
        prompt = {} if self.decoding else {"prompt": self.answers.prompt[0]}
        return {"tokens": self.answers.drawn(calls), **prompt}

    def read(self, inputs: Mapping[str, Tensor]) -> None:
        if "prompt" in inputs:
            self.family.method = self.method
            self.decoding = self._prefilled(self.inputs.put(0, inputs["prompt"]))

    def answered(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self.decoding is not None
        self.family.method = self.method
        steps = [self.decoding.step(token[:, None]) for token in inputs["tokens"].unbind(1)]
        return {str(i): logits.float() for i, logits in enumerate(steps)}

    def catch_up(self, calls: int) -> None:
        self.family.method = self.method
        for i in range(calls):
            self.prepared(i)()

    def check_copies(self) -> None:
        """Raises IntegrityError when steps after a copy of the cache give other logits than steps
        after the prompt, or run other operations: a part of the cache is then kept outside it.
        Anything that a method computes once in a process must have been computed before."""
        self.family.method = self.method
        fresh = self._prefilled(self.answers.prompt)
        self.kept = copied(fresh)
        tokens = self.answers.drawn(CHECKED_STEPS)
        logits, operations = self._recorded(fresh, tokens)
        again, others = self._recorded(copied(self.kept), tokens)
        if operations != others:
            fail_check("computes something else after its cache is copied: it keeps some outside")
        if not (again - logits).norm() <= integrity.CHANGED_FRAC * logits.norm():
            fail_check("answers otherwise after its cache is copied: it keeps some outside")

    def _recorded(self, decoding: Decoding, tokens: Tensor) -> tuple[Tensor, list[Any]]:
        """Logits [steps, B, V] after each of the tokens [B, steps], and the operations run."""
        with Operations() as operations:
            steps = [self._step(decoding, token[:, None])() for token in tokens.unbind(1)]
        return torch.stack(steps), operations.ran

    def shape_of(self, i: int) -> torch.Size:
        return torch.Size((len(self.answers.prompt[0]), 1))

    def check_attended(self, before: int) -> None:
        # Both arms use the model's own decoder in an encoder-decoder; the encoder was checked.
        if self.decoding is None or self.decoding.cache is not None:
            super().check_attended(before)

    def _begun(self) -> Decoding:
        """A copy of the prompt as it was read."""
        if self.kept is None:
            self.kept = self._prefilled(self.answers.prompt)
        started = perf_counter_ns()
        decoding = copied(self.kept)
        self.copy_ns = perf_counter_ns() - started
        return decoding

    def _prefilled(self, prompt: Input) -> Decoding:
        torch.manual_seed(SEED)
        attended, started = self.family.calls, perf_counter_ns()
        decoding = self.family.prefill(*prompt)
        self.prefill_ns = perf_counter_ns() - started
        integrity.check_attention_ran(self.family, attended)
        return decoding

    def _step(self, decoding: Decoding, token: Tensor) -> Forward:
        torch.manual_seed(SEED)
        return partial(decoding.step, token)


def copied(state: T) -> T:
    """A deep copy of the state after a prompt; models and methods are shared."""
    with ExitStack() as patches:
        for kind in (Family, Method, nn.Module):
            itself = patch.object(kind, "__deepcopy__", lambda shared, _: shared, create=True)
            patches.enter_context(itself)
        return copy.deepcopy(state)


class Operations(TorchDispatchMode):
    """Inside, records the operations that run, and the shapes of their input tensors."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [x.shape for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.ran.append((str(func), given))
        return func(*args, **(kwargs or {}))
