"""What a training starts with: the model, the optimizer, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from bench.execution import arms
from bench.models.base import Family
from bench.request import plugins
from bench.request.cell import Cell
from bench.request.protocol import find_checkpoint
from bench.train.gradient_checkpointing import CheckpointedMethod


def load_for_training(cell: Cell, method: Mapping[str, Any]) -> Family:
    """The cell's untrained model with this method in it, in training mode and in float32. Raises
    RequestError, or Unsupported with the method's reason."""
    model = cell.model
    start = find_checkpoint(model["original_path"], model.get("revision"))
    family = arms.load_from(
        start, cell, plugins.build(dict(method)), model.get("config"), "float32", training=True
    )
    if cell.recipe and cell.recipe["recompute"]:
        family.method = CheckpointedMethod(family.method)
    return family


def adamw(model: Any, recipe: Mapping[str, Any]) -> torch.optim.AdamW:
    """AdamW without weight decay for biases, norms and other vectors."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": recipe["weight_decay"]},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe["lr"], betas=(0.9, recipe["beta2"]), eps=recipe["eps"]
    )


def learning_rate(recipe: Mapping[str, Any], step: int, total: int) -> float:
    top, warmup = recipe["lr"], recipe["warmup"]
    if step < warmup:
        return float(top * (step + 1) / warmup)
    done = (step - warmup) / max(1, total - warmup)
    factor = {
        "constant": 1.0,
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "rsqrt": math.sqrt(max(1, warmup) / max(1, step)),
    }[recipe["schedule"]]
    return float(top * factor)
