"""The training of a model's weights, from the files in their folder. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from bench.request import protocol
from bench.status import WeightsProtocol

CARD = "card.yaml"
RANDOM = "random weights"
HOUR_NS = 3600 * 10**9

TrainingRecord = TypedDict(
    "TrainingRecord",
    {"from": str | None, "steps": int | None, "hours": float | None, "supervision": str | None},
)
"""`from`: what the weights were before. `steps` and `hours` are those of the training from there;
`supervision` is what the loss was computed from. None: not recorded."""


def training_of(model: Mapping[str, Any]) -> TrainingRecord | None:
    """The training of a cell's weights: from the card of the recipe that trained them, or the field
    `training` of the card.yaml next to them. None without either, and for random weights."""
    folder = Path(model["path"])
    if model.get("config") and "training" not in model:
        return None
    card = protocol.card(folder)
    return _by_recipe(model, card) if card else _by_card(folder / CARD)


def _by_recipe(model: Mapping[str, Any], card: Mapping[str, Any]) -> TrainingRecord:
    if "training" in model:
        random = model["start_sha256"] is None
    else:
        random = card.get("protocol") == WeightsProtocol.FROM_SCRATCH
    wall_ns = card.get("wall_ns")
    return {
        "from": RANDOM if random else card.get("model"),
        "steps": card.get("best_step"),
        "hours": None if wall_ns is None else wall_ns / HOUR_NS,
        "supervision": "answers of the training rows",
    }


def _by_card(path: Path) -> TrainingRecord | None:
    import yaml

    try:
        card = yaml.safe_load(path.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    training = card.get("training") if isinstance(card, dict) else None
    if not isinstance(training, dict):
        return None
    names = TrainingRecord.__annotations__
    return cast(TrainingRecord, {name: training.get(name) for name in names})
