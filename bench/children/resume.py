"""What a training goes on from after a kill: one safetensors file, either the old or the new."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bench.errors import RequestError

STATE = "training.state"
"""Not named as weights are: a checkpoint is hashed with what is named so."""

WEIGHTS = "model.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class DiskFull(OSError):
    """A checkpoint couldn't be written; the one before it is whole."""


def save(
    path: Path,
    model: Any,
    optimizer: Any,
    scaler: Any,
    state: dict[str, Any],
    spent: dict[str, Any],
) -> None:
    """Weights, Adam's moments and how far the training is. Raises DiskFull."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    told = {"state": state, "spent": spent, "scaler": scaler.state_dict() if scaler else None}
    _write(path, tensors, {"told": json.dumps(told)}, state["step"])


def restore(
    path: Path, model: Any, optimizer: Any, scaler: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take up what `save` wrote; returns state and spent."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            told: dict[str, Any] = json.loads(file.metadata()["told"])
    except (SafetensorError, OSError) as error:
        raise RequestError(f"{path} can't be read ({error}); remove it to begin anew") from error
    for name, value in model.state_dict().items():
        value.copy_(tensors[f"model.{name}"])
    for name, parameter in model.named_parameters():
        if f"step.{name}" in tensors:
            moments = {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
            for moment in MOMENTS[1:]:
                moments[moment] = moments[moment].to(parameter.device)
            optimizer.state[parameter] = moments
    if scaler and told["scaler"]:
        scaler.load_state_dict(told["scaler"])
    return told["state"], told["spent"]


def save_weights(place: Path, model: Any, step: int) -> None:
    """The weights alone, as `from_pretrained` reads them. Raises DiskFull."""
    _write(place / WEIGHTS, _untied(model), {"format": "pt"}, step)


def _untied(model: Any) -> dict[str, torch.Tensor]:
    """Weights by name, each once: what is tied to another is not in the file."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def _write(path: Path, tensors: dict[str, Any], told: dict[str, str], step: int) -> None:
    part = path.with_suffix(".part")
    own = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    try:
        save_file(own, part, metadata=told)
        part.chmod(0o644)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (SafetensorError, OSError) as error:
        part.unlink(missing_ok=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        why = "the disk is full" if full else str(error)
        kept = f"the one before is kept: {path}" if path.exists() else "none was saved before"
        raise DiskFull(f"{why} while saving the checkpoint of step {step}; {kept}") from error
