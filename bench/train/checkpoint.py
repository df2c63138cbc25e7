"""Files of a training: the state from which it continues, the best weights, and the finished
checkpoint. Each file is replaced as a whole, so a kill leaves the old one or the new one."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch

from bench.errors import RequestError, RunError
from bench.files import replacing
from bench.request import weights
from bench.request.weights import checkpoint_sha256

STATE = "training.state"
WEIGHTS = "model.safetensors"


class DiskFull(RunError):
    """A checkpoint couldn't be written; the one before it is complete."""


def save_state(
    path: Path, model: Any, optimizer: Any, scaler: Any, state: dict[str, Any], spent: object
) -> None:
    """Save the weights, Adam's moments and the training's progress. Raises DiskFull."""
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler else None,
        "state": state,
        "spent": spent,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    _write(path, buffer.getbuffer(), state["step"])


def restore_state(
    path: Path, model: Any, optimizer: Any, scaler: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the files of `save_state`; returns state and spent."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError) as error:
        raise RequestError(f"{path} can't be read ({error}); remove it to start again") from error
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    if scaler and content["scaler"]:
        scaler.load_state_dict(content["scaler"])
    return content["state"], content["spent"]


def save_weights(folder: Path, model: Any, step: int) -> None:
    """Save only the weights, in the format for `from_pretrained`. Raises DiskFull."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    weights = {
        name: value.cpu().clone().contiguous()
        for name, value in model.state_dict().items()
        if name not in tied
    }
    _write(folder / WEIGHTS, safetensors.torch.save(weights, {"format": "pt"}), step)


def publish(folder: Path, model: Any, tokenizer: Any, card: dict[str, Any]) -> dict[str, Any]:
    """Make the saved weights a checkpoint like any other: add configuration and tokenizer, then the
    card, which marks it as finished. Returns the card with the weights' hash."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    card = card | {"weights_sha256": checkpoint_sha256(folder)}
    with replacing(folder / weights.CARD) as unfinished:
        unfinished.write_text(json.dumps(card, indent=1))
    (folder / STATE).unlink(missing_ok=True)
    return card


def _write(path: Path, content: bytes | memoryview, step: int) -> None:
    try:
        with replacing(path) as unfinished, unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        kept = f"the one before is kept: {path}" if path.exists() else "none was saved before"
        raise DiskFull(f"{reason} while saving the checkpoint of step {step}; {kept}") from error
