"""Time of each new token of several KV caches, measured in turns in one process, and the bytes that
the caches hold and read: a prompt is read once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from bench.errors import RunError
from bench.execution import arms, worker
from bench.measure.forced_answer import DecodingArm, ForcedAnswers, copied
from bench.measure.memory import COUNTED_STEPS, CacheCount
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.shared_prefill import checked_methods, drop
from bench.measure.turns import VANILLA, Turns, loaded
from bench.models.batched_rows import Row
from bench.models.decoder import DecoderFamily
from bench.request.parameters import PART
from methods.base import Method

STAGE = "tokens"
STEPS = 4
"""Timed steps of a sample, after an untimed one."""


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """`timed`: for each of `cells`, equal in all but their method, by number, the fields of its
    comparison with vanilla after these `rounds`. `columns`: of all their rows. `counts`, if asked
    for: the columns of each cache, vanilla's among them. `dropped`: the reason of each cell whose
    method failed; it is raised where there is one cell."""
    cells, family, process = loaded(request)
    cell = cells[0]
    if not isinstance(family, DecoderFamily):
        raise RunError(f"{cell.model['name']} is no decoder, whose tokens could be timed")
    report(STAGE, 0, request["rounds"])
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, 1))
    assert cell.new_tokens is not None
    answers = ForcedAnswers(inputs, cell.new_tokens - 1)
    own, dropped = checked_methods(cells, family)
    methods = {VANILLA: arms.vanilla(), **own}
    with torch.inference_mode():
        rows = _read(family, answers, methods, apart=cell.method.get(PART) is not None)
        for number, row in [*rows.items()]:
            if row.error is not None:
                drop(dropped, number, row.error, len(cells))
                del rows[number]
        decoding = {
            number: DecodingArm(
                family, methods[number], inputs, cell.device["kind"], process,
                answers=answers, kept=row,
            )
            for number, row in rows.items()
        }  # fmt: skip
        turns = Turns(decoding, STEPS, untimed=1)
        turns.time(request["rounds"], partial(report, STAGE))
        found: dict[str, Any] = {"timed": turns.fields(cells), "dropped": dropped}
        found["columns"] = process.gpu_columns()
        if request["counts"]:
            for arm in decoding.values():
                arm.decoding = arm.kept = None
            found["counts"] = counts(family, rows, answers)
        return found


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


def counts(
    family: DecoderFamily, rows: Mapping[int, Row], answers: ForcedAnswers
) -> dict[str, Any]:
    """The columns of each cache after an answer, counted while all decode as one batch."""
    copies = {number: copied(row) for number, row in rows.items()}
    found = {number: CacheCount(row) for number, row in copies.items()}
    tokens = answers.drawn(answers.steps)
    for step, token in enumerate(tokens.T):
        if step < answers.steps - COUNTED_STEPS:
            family.step_each([*copies.values()], token[None].expand(len(copies), 1))
        else:
            for count in found.values():
                count.step(token[None])
    workload = family.workload(answers.prompt[0].shape[1], 1)
    return {str(number): count.columns(workload, answers.steps) for number, count in found.items()}
