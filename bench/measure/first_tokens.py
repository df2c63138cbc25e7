"""Time to the first token of several methods, measured in turns in one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from bench.execution import arms, worker
from bench.measure import diagnostics
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.shared_prefill import checked_methods
from bench.measure.timed_call import Arm
from bench.measure.turns import VANILLA, Turns, loaded
from bench.measure.two_arms import kernel_of

STAGE = "first tokens"


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """As `bench.measure.tokens.measure`, of the time to the first token; `counts` are each method's
    time inside its attention and its kernel."""
    cells, family, process = loaded(request)
    cell = cells[0]
    report(STAGE, 0, request["rounds"])
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, arms.INPUTS))
    methods, dropped = checked_methods(cells, family)
    turns = Turns(
        {
            number: Arm(family, method, inputs, cell.device["kind"], process)
            for number, method in {VANILLA: arms.vanilla(), **methods}.items()
        }
    )
    counts: dict[str, Any] = {}
    with torch.inference_mode():
        turns.time(request["rounds"], partial(report, STAGE))
        for number, arm in turns.arms.items() if request["counts"] else ():
            family.method = arm.method
            times = diagnostics.stage_times(family, inputs.current(0), 0.0)
            counts[str(number)] = times | {"kernel": kernel_of(arm.method)}
    columns = process.gpu_columns()
    found = {"timed": turns.fields(cells), "dropped": dropped, "columns": columns}
    return found | ({"counts": counts} if counts else {})
