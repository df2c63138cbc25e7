"""Time of each new token of several KV caches in one process, and the bytes that they hold and
read: a prompt is read once for all of them, and their steps are timed in turns.

In a round each cache decodes some forced tokens, in an order at random, and vanilla does so before
them, after them and in between. A sample of a cache and vanilla's nearest one are a pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from bench.errors import RunError
from bench.execution import arms, worker
from bench.measure.copied_state import copied
from bench.measure.forced_answer import DecodingArm, ForcedAnswers
from bench.measure.memory import COUNTED_STEPS, CacheCount
from bench.measure.paired_timing import PairSamples, Sample, timing_loop
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.shared_prefill import checked_method
from bench.measure.timed_call import Process
from bench.models.batched_rows import Row
from bench.models.decoder import DecoderFamily
from bench.request.cell import Cell
from bench.request.parameters import PART
from bench.request.schema import BASELINE
from methods.base import Method

STAGE = "tokens"
STEPS = 4
"""Timed steps of a sample. One before them brings the arm's memory back into the caches of the
processor."""
NEIGHBOURS = 6
"""The most caches between two samples of vanilla."""
VANILLA = -1
"""The number of vanilla among the caches; cells have theirs from 0 on."""


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """`timed`: for each of `cells`, equal in all but their method, by number, the fields of its
    comparison with vanilla after these `rounds`. `counts`, if asked for: the columns of each cache,
    vanilla's among them. `dropped`: the reason of each cell whose method failed; it is raised where
    there is one cell."""
    cells = [Cell.from_json(text) for text in request["cells"]]
    worker.keep_freed_memory(worker.Kept.ALL)
    arms.prepare(cells[0], timed=True)
    process = Process()
    family = arms.load(cells[0], arms.vanilla())
    if not isinstance(family, DecoderFamily):
        raise RunError(f"{cells[0].model['name']} is no decoder, whose tokens could be timed")
    report(STAGE, 0, request["rounds"])
    with torch.inference_mode():
        caches = Caches.of(cells, family, process)
        aa = caches.time(request["rounds"], partial(report, STAGE))
        found: dict[str, Any] = {"timed": caches.fields(cells, aa), "dropped": caches.dropped}
        return found | ({"counts": caches.counts()} if request["counts"] else {})


@dataclass
class Caches:
    """Caches that decode in turns, by number of their cell.

    rows     each after the prompt
    arms     each with its method
    dropped  methods that failed, with the reason
    pairs    samples of a cache, each with vanilla's
    order    for each pair V where vanilla's sample came first, else M
    """

    family: DecoderFamily
    answers: ForcedAnswers
    rows: Mapping[int, Row]
    arms: Mapping[int, DecodingArm]
    dropped: Mapping[int, str]
    pairs: dict[int, list[tuple[Sample, Sample]]] = field(default_factory=dict)
    order: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Sequence[Cell], family: DecoderFamily, process: Process) -> Caches:
        """The caches of the cells' methods and of vanilla, filled by one prompt. Raises a method's
        error where there is one cell."""
        cell, dropped = cells[0], dict[int, str]()
        texts = arms.timed_texts(cell, 1)
        encoded = arms.inputs(cell, cell.build_task(), family.tokenizer, texts).encoded
        inputs = PerturbedInputs(arms.longest_inputs(cell, family, 1))
        assert cell.new_tokens is not None
        answers = ForcedAnswers(inputs, cell.new_tokens - 1)
        methods: dict[int, Method] = {VANILLA: arms.vanilla()}

        def drop(number: int, error: Exception) -> None:
            if len(cells) == 1:
                raise error
            dropped[number] = f"{type(error).__name__}: {error}"

        for number, each in enumerate(cells):
            if each.method["name"] != BASELINE:
                try:
                    methods[number] = checked_method(each, family, encoded)
                except Exception as error:
                    drop(number, error)
        rows = _read(family, answers, methods, apart=cell.method.get(PART) is not None)
        for number, row in rows.items():
            if row.error is not None:
                drop(number, row.error)
        kept = {number: row for number, row in rows.items() if number not in dropped}
        decoding = {
            number: DecodingArm(
                family, methods[number], inputs, cell.device["kind"], process,
                answers=answers, kept=row,
            )
            for number, row in kept.items()
        }  # fmt: skip
        return cls(family, answers, kept, decoding, dropped)

    def time(self, rounds: int, progress: Callable[[int, int], None]) -> list[Sample]:
        """Times the pairs; returns all samples of vanilla."""
        numbers = [number for number in self.arms if number != VANILLA]
        exact: list[Sample] = []
        for number in self.arms:
            self._sample(number)
        with timing_loop():
            for done in range(rounds):
                progress(done, rounds)
                exact.append(self._sample(VANILLA))
                turns = random.sample(numbers, len(numbers))
                for at in range(0, max(1, len(turns)), NEIGHBOURS):
                    turn = turns[at : at + NEIGHBOURS]
                    samples = [self._sample(number) for number in turn]
                    exact.append(self._sample(VANILLA))
                    self._pair(turn, samples, exact)
        return exact

    def _sample(self, number: int) -> Sample:
        arm = self.arms[number]
        arm.catch_up(1)
        took = arm.sample(0, STEPS)
        arm.given.clear()
        return Sample(took, sum(arm.waits[-STEPS:]) // STEPS)

    def _pair(self, turn: Sequence[int], samples: Sequence[Sample], exact: list[Sample]) -> None:
        """The caches' samples with the nearer one of vanilla's before and after them; the middle
        one's is drawn."""
        for place, (number, sample) in enumerate(zip(turn, samples, strict=True)):
            after = 2 * place + 1 - len(turn)
            is_after = after > 0 or (after == 0 and random.random() < 0.5)
            self.pairs.setdefault(number, []).append((sample, exact[-1 if is_after else -2]))
            self.order[number] = self.order.get(number, "") + ("M" if is_after else "V")

    def fields(self, cells: Sequence[Cell], exact: Sequence[Sample]) -> dict[str, Any]:
        """The measured fields of each cell's comparison; of vanilla the samples alone."""
        shared: dict[str, Any] = {"calls_per_sample": STEPS}
        aa = [*zip(exact[::2], exact[1::2], strict=False)]
        found: dict[str, Any] = {}
        for number, cell in enumerate(cells):
            if cell.method["name"] == BASELINE:
                found[str(number)] = shared | {"samples_ns": [one.wall_ns for one in exact]}
            elif number in self.pairs:
                taken = PairSamples(self.pairs[number], aa, self.order[number], [], [])
                first, second = taken.sides(aa)
                found[str(number)] = shared | taken.fields() | {
                    "aa_first_samples_ns": first, "aa_second_samples_ns": second,
                    "waits_left_out": taken.without_waits or None,
                }  # fmt: skip
        return found

    def counts(self) -> dict[str, Any]:
        """The columns of each cache after an answer, counted while all decode as one batch."""
        for arm in self.arms.values():
            arm.decoding = arm.kept = None
        rows = {number: copied(row) for number, row in self.rows.items()}
        counts = {number: CacheCount(row) for number, row in rows.items()}
        tokens = self.answers.drawn(self.answers.steps)
        for step, token in enumerate(tokens.T):
            if step < len(tokens.T) - COUNTED_STEPS:
                self.family.step_each([*rows.values()], token[None].expand(len(rows), 1))
            else:
                for count in counts.values():
                    count.step(token[None])
        workload = self.family.workload(self.answers.prompt[0].shape[1], 1)
        return {
            str(number): count.columns(workload, self.answers.steps)
            for number, count in counts.items()
        }


def _read(
    family: DecoderFamily, answers: ForcedAnswers, methods: Mapping[int, Method], apart: bool
) -> dict[int, Row]:
    """The row of each method after the prompt; vanilla reads it `apart` where another method's
    attention reads it for the caches."""
    groups = [[VANILLA], [*methods][1:]] if apart else [[*methods]]
    return {
        number: row
        for group in groups if group
        for number, row in zip(
            group, family.prefill_each(*answers.prompt, [methods[i] for i in group]), strict=True
        )
    }  # fmt: skip
