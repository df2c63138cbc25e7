"""How a method that chooses what it reads is trained to choose what answers are copied from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.children import train_pairs
from bench.children.pairs import Batch
from bench.models.base import Family


def measure(family: Family, batch: Batch, guidance: float) -> tuple[Tensor, float]:
    """As bench.children.train_pairs:measure, with a method that has `needed` and `missed`
    (methods.vcc_seeking:Seeking): guidance adds what its choice missed."""
    method: Any = family.method
    family.method = seeking = replace(
        method, needed=batch.copies[:, [0, 3]].unique(dim=0), missed=[]
    )
    loss, right = train_pairs.measure(family, batch, guidance)
    family.method = method
    if seeking.missed:
        loss = loss + guidance * torch.stack(seeking.missed).mean()
    return loss, right
