"""Checks whether one forward of the method, or one training step if the measure is of training,
fits in memory at a length, on random token ids."""

from __future__ import annotations

from typing import Any

import torch

from bench.execution import arms, worker
from bench.measure import training_step
from bench.measure.perturbed_inputs import Input
from bench.models.base import Family
from bench.request.cell import Cell
from methods.base import SequenceInfo

VIP_TOKENS = 32


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell, costs=True)
    if cell.plan.training:
        family = training_step.start(cell)
        batch = training_step.rows(cell, family)[0]
        report("probe")
        inputs = random_inputs(cell, family, len(batch.ids), request["length"])
        training_step.second_step(family, training_step.with_inputs(family, batch, *inputs))
    else:
        family = arms.load(cell, arms.method_of(cell))
        report("probe")
        with torch.inference_mode():
            inputs = random_inputs(cell, family, cell.batch, request["length"])
            arms.first_token(family, *inputs)
    return {"fits": request["length"]}


def random_inputs(cell: Cell, family: Family, rows: int, length: int) -> Input:
    """Ids [rows, length] without padding; the first tokens are VIP."""
    config: Any = family.model.config
    ids = torch.randint(2, config.vocab_size, (rows, length)).to(cell.device["kind"])
    vip = torch.zeros_like(ids, dtype=torch.bool)
    vip[:, :VIP_TOKENS] = True
    return ids, SequenceInfo(vip=vip)
