"""Weights that a recipe gives, and what a training step costs: the runner's part in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import training
from bench.cell import BASELINE, Cell
from bench.supervisor import Outcome, Progress

Row = dict[str, Any]
Child = Callable[..., Outcome]
"""bench.runner's way to run a module of bench.children."""

FOR_EVER_S = 14 * 24 * 3600.0
"""A training has no deadline: what it has done is kept."""


def identity(cell: Cell) -> Row:
    """The columns that say how the weights came about."""
    columns: Row = {"weights_protocol": cell.protocol}
    if cell.recipe is None:
        return columns
    card = training.card(Path(cell.model["path"])) or {}
    return columns | {
        "recipe": cell.recipe["name"],
        "recipe_params": json.dumps(dict(cell.recipe), sort_keys=True),
        "checkpoint_key": cell.model["training"],
        "train_steps": card.get("best_step"),
        "train_wall_ns": card.get("wall_ns"),
        "train_dev_score": card.get("dev_score"),
    }


def weights(cell: Cell, child: Child, progress: Progress | None) -> tuple[Outcome | None, Cell]:
    """The cell on the weights that its recipe gives, and vanilla's beside them where the cell
    compares answers, each trained where it isn't there. The outcome is a failed training's."""
    needed = arms(cell)
    for arm in needed:
        if training.card(Path(arm.model["path"])) is None:
            outcome = one(arm, child, progress)
            if outcome.status != "ok":
                return outcome, cell
    return None, cell.trained() if needed else cell


def arms(cell: Cell) -> list[Cell]:
    """The cells whose weights a recipe has to train before this one can be measured: its own, and
    vanilla's where it compares answers."""
    if cell.recipe is None or cell.plan.training:
        return []
    compares = cell.plan.quality and cell.method["name"] != BASELINE
    return [cell.trained(), *([cell.baseline()] if compares else [])]


def one(cell: Cell, child: Child, progress: Progress | None) -> Outcome:
    """Train the weights that a cell asks for; its result is their card."""
    return child("train", {}, cell, FOR_EVER_S, progress)


def step(
    cell: Cell,
    child: Child,
    deadline_s: float,
    progress: Progress | None,
) -> tuple[Outcome, Row]:
    """What a training step costs beside vanilla's: time in pairs, peak memory in a process each."""
    outcome = child("step", {}, cell, deadline_s, progress)
    if outcome.status != "ok":
        return outcome, {}
    columns: Row = {"training": outcome.result}  # raw samples, for bench.judge
    arms = {"": "method", "base_": BASELINE}
    if cell.method["name"] == BASELINE:
        del arms["base_"]
    for prefix, arm in arms.items():
        peak = child("step", {"arm": arm}, cell, deadline_s, progress)
        if peak.status != "ok":
            columns["train_reason"] = f"peak memory of {arm}: {peak.status}"
            return outcome, columns
        columns |= {f"{prefix}{name}": value for name, value in peak.result.items()}
    own, base = columns.get("train_peak_bytes"), columns.get("base_train_peak_bytes")
    if own is not None and base:
        columns["train_mem_ratio"] = own / base
    return outcome, columns
