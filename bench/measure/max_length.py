"""Whether one forward of the method fits in memory at a length, on random token ids."""

from __future__ import annotations

from typing import Any

import torch

from bench.execution import arms, worker
from bench.request.cell import Cell
from methods.base import SequenceInfo

VIP_TOKENS = 32


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell, costs=True)
    family = arms.load(cell, arms.method_of(cell))
    device, length = cell.device["kind"], request["length"]
    config: Any = family.model.config
    ids = torch.randint(2, config.vocab_size, (cell.batch, length)).to(device)
    vip = torch.zeros_like(ids, dtype=torch.bool)
    vip[:, :VIP_TOKENS] = True
    report("probe")
    with torch.inference_mode():
        arms.first_token(family, ids, SequenceInfo(vip=vip))
    return {"fits": length}
