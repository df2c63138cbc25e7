"""Times several methods and vanilla in turns in one process: for many methods this is cheaper than
pairs of each, since they share vanilla's samples. It times either each new token of several KV
caches, which share one reading of the prompt, or the first token.

In a round each method is timed once, in random order, and vanilla before them, after them and in
between. A sample of a method and vanilla's nearest one are a pair.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from bench.errors import RunError
from bench.execution import arms, worker
from bench.execution.cell_group import VANILLA
from bench.measure import latency
from bench.measure.decoding import DecodingArm, ForcedAnswers, copied
from bench.measure.memory import COUNTED_STEPS, CacheCount
from bench.measure.paired_timing import PairSamples, timing_loop
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.shared_prefill import checked_methods, drop
from bench.measure.timed_call import Arm, Process, Sample, check_streams
from bench.measure.two_arms import kernel_of
from bench.models.batched_rows import Row
from bench.models.decoder import DecoderFamily
from bench.request.cell import Cell
from bench.request.parameters import PART
from bench.rows import columns
from methods.base import Method

STEPS = 4
"""Timed steps of a sample, after an untimed one."""
NEIGHBOURS = 6
"""The most methods between two samples of vanilla."""


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """`timed`: for each of `cells`, which differ only in their method, by number, the fields of its
    comparison with vanilla after these `rounds`. `columns`: columns of all their rows. `counts`, if
    requested: for each method and vanilla, its kernel, and the columns of its cache or its time
    inside its attention. `dropped`: the reason of each cell whose method failed; it is raised if
    there is only one cell."""
    cells, rounds = [Cell.from_json(text) for text in request["cells"]], request["rounds"]
    cell, tokens = cells[0], cells[0].plan.tokens_alone
    device, stage = cell.device["kind"], "tokens" if tokens else "first tokens"
    worker.keep_freed_memory()
    arms.prepare(cell, timed=True)
    process = Process(device)
    family = arms.load(cell, arms.vanilla())
    report(stage, 0, rounds)
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, 1 if tokens else arms.INPUTS))
    own, dropped = checked_methods(cells, family)
    methods = {VANILLA: arms.vanilla(), **own}
    with torch.inference_mode():
        if tokens:
            if not isinstance(family, DecoderFamily):
                raise RunError(f"{cell.model['name']} is no decoder, whose tokens could be timed")
            assert cell.new_tokens is not None
            answers = ForcedAnswers(inputs, cell.new_tokens - 1)
            rows = prompt_rows(cell, family, answers, methods)
            for number, row in [*rows.items()]:
                if row.error is not None:
                    drop(dropped, number, row.error, len(cells))
                    del rows[number]
            timed: dict[int, Arm] = {
                number: DecodingArm(
                    family, methods[number], inputs, device, process, answers=answers, kept=row
                )
                for number, row in rows.items()
            }
            turns = Turns(timed, STEPS, untimed=1)
            counts = partial(cache_columns, family, rows, answers)
        else:
            timed = {
                number: Arm(family, method, inputs, device, process)
                for number, method in methods.items()
            }
            turns = Turns(timed)
            counts = partial(attention_times, timed)
        turns.time(rounds, partial(report, stage))
        found = {"timed": turns.fields(cells), "dropped": dropped, "columns": process.gpu_columns()}
        if request["counts"]:
            del turns, timed  # frees the caches of the current answers
            found["counts"] = {
                str(number): each | {"kernel": kernel_of(methods[number])}
                for number, each in counts().items()
            }
        return found


def prompt_rows(
    cell: Cell, family: DecoderFamily, answers: ForcedAnswers, methods: Mapping[int, Method]
) -> dict[int, Row]:
    """The row of each method after the prompt; vanilla reads it separately if another method's
    attention reads it for the caches."""
    apart = cell.method.get(PART) is not None
    rows: dict[int, Row] = {}
    for group in ([VANILLA], [*methods][1:]) if apart else ([*methods],):
        if group:
            read = family.prefill_each(*answers.prompt, [methods[number] for number in group])
            rows |= zip(group, read, strict=True)
    return rows


def cache_columns(
    family: DecoderFamily, rows: Mapping[int, Row], answers: ForcedAnswers
) -> dict[int, columns.Row]:
    """The columns of each cache after an answer, counted while all decode as one batch."""
    copies = {number: copied(row) for number, row in rows.items()}
    counts = {number: CacheCount(row) for number, row in copies.items()}
    tokens = answers.drawn(answers.steps)
    for step, token in enumerate(tokens.T):
        if step < answers.steps - COUNTED_STEPS:
            family.step_each([*copies.values()], token[None].expand(len(copies), 1))
        else:
            for count in counts.values():
                count.step(token[None])
    workload = family.workload(answers.prompt[0].shape[1], 1)
    return {number: count.columns(workload, answers.steps) for number, count in counts.items()}


def attention_times(timed: Mapping[int, Arm]) -> dict[int, columns.Row]:
    """The time inside each method's attention."""
    found: dict[int, columns.Row] = {}
    for number, arm in timed.items():
        arm.family.method = arm.method
        found[number] = latency.stage_times(arm.family, arm.inputs.current(0), 0.0)
    return found


@dataclass
class Turns:
    """Samples of methods, by the number of their cell.

    arms     one for each method
    calls    timed calls of a sample
    untimed  calls before them, which bring the arm's memory back into the processor's caches
    pairs    samples of each method, paired with vanilla's
    exact    all samples of vanilla
    """

    arms: Mapping[int, Arm]
    calls: int = 1
    untimed: int = 0
    pairs: dict[int, PairSamples] = field(default_factory=lambda: defaultdict(PairSamples))
    exact: list[Sample] = field(default_factory=list)

    def time(self, rounds: int, progress: Callable[[int, int], None]) -> None:
        numbers = [number for number in self.arms if number != VANILLA]
        for number in self.arms:
            self._sample(number, 0)
        with timing_loop():
            for done in range(rounds):
                progress(done, rounds)
                self.exact.append(self._sample(VANILLA, done))
                turns = random.sample(numbers, len(numbers))
                for at in range(0, max(1, len(turns)), NEIGHBOURS):
                    turn = turns[at : at + NEIGHBOURS]
                    samples = [self._sample(number, done) for number in turn]
                    self.exact.append(self._sample(VANILLA, done))
                    self._pair(turn, samples)
        for arm in self.arms.values():
            check_streams(arm.left, arm.usual_ns)

    def fields(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """The measured fields of each cell's comparison; for vanilla only the samples."""
        aa = [*zip(self.exact[::2], self.exact[1::2], strict=False)]
        found: dict[str, Any] = {}
        for number, cell in enumerate(cells):
            if cell.is_baseline:
                fields: dict[str, Any] = {"samples_ns": [one.wall_ns for one in self.exact]}
            elif number in self.pairs:
                fields = replace(self.pairs[number], aa=aa).fields_to_vanilla()
            else:
                continue
            found[str(number)] = {"calls_per_sample": self.calls, **fields}
        return found

    def _sample(self, number: int, i: int) -> Sample:
        arm = self.arms[number]
        if self.untimed:
            arm.catch_up(self.untimed)
        sample = arm.sample(i, self.calls)
        arm.given.clear()
        return sample

    def _pair(self, turn: Sequence[int], samples: Sequence[Sample]) -> None:
        """Pairs each method's sample with the nearer one of vanilla's samples before and after; for
        the middle one, vanilla's sample is drawn."""
        for place, (number, sample) in enumerate(zip(turn, samples, strict=True)):
            nearer = 2 * place + 1 - len(turn) or random.choice((-1, 1))
            exact = self.exact[-1 if nearer > 0 else -2]
            self.pairs[number].pairs.append((sample, exact))
            self.pairs[number].order += "M" if nearer > 0 else "V"
