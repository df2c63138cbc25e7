"""What a training begins with: the model, the optimizer, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from bench import plugins
from bench.cell import Cell
from bench.children.recompute import Recomputed
from bench.errors import RequestError
from bench.models.base import Family, Spec
from bench.weights import find_checkpoint
from methods.base import Unsupported


def load(cell: Cell, method: Mapping[str, Any]) -> Family:
    """The cell's model at its start, with this method in it, in training mode and in float32.
    Raises RequestError, or Unsupported with the method's reason."""
    model = cell.model
    start = find_checkpoint(model["original_path"], model.get("revision"))
    marks = tuple(model.get("marks", ()))
    spec = Spec(model["name"], start, model.get("config"), cell.seed, marks)
    try:
        family: Family = plugins.load(model["family"]).load(
            spec, plugins.build(dict(method)), "float32", cell.device["kind"]
        )
    except (OSError, ValueError) as error:
        raise RequestError(str(error).splitlines()[0]) from error
    family.model.train()
    shape = family.shape(cell.length, cell.batch)
    if reason := family.method.unsupported(shape):
        raise Unsupported(reason)
    if cell.recipe and cell.recipe["recompute"]:
        family.method = Recomputed(family.method)
    return family


def optimizer(model: Any, recipe: Mapping[str, Any]) -> torch.optim.AdamW:
    """AdamW; biases, norms and other vectors don't decay."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": recipe["weight_decay"]},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe["lr"], betas=(0.9, recipe["beta2"]), eps=recipe["eps"]
    )


def rate(recipe: Mapping[str, Any], step: int, total: int) -> float:
    """The learning rate of step 0, 1, … of so many."""
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
