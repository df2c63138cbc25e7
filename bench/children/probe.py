"""Whether one forward of the method fits at a length, on token ids drawn at random."""

from __future__ import annotations

from typing import Any

import torch

from bench.cell import Cell
from bench.children import arms, child
from methods.base import Sequence

VIP_TOKENS = 32


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    family = arms.load(cell, arms.method_of(cell))
    device, length = cell.device["kind"], request["length"]
    config: Any = family.model.config
    ids = torch.randint(2, config.vocab_size, (cell.batch, length)).to(device)
    vip = torch.zeros_like(ids, dtype=torch.bool)
    vip[:, :VIP_TOKENS] = True
    report("probe")
    with torch.inference_mode():
        arms.first_token(family, ids, Sequence(vip=vip))
    return {"fits": length}
