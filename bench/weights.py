"""A model's weights: the folder of their checkpoint, their hash, and the head that a task needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import plugins
from bench.errors import RequestError
from bench.models import auto
from tasks.sources import sha256


def weights_of(
    model: Mapping[str, Any], method: str, use_adapted: bool, answers: str = ""
) -> dict[str, Any]:
    """The model with the checkpoint that this method uses, its hash, and the head that a task
    with such answers needs."""
    original = model.get("original_path") or model["path"]
    adapted = (model.get("adapted") or {}).get(method) if use_adapted else None
    path = find_checkpoint(adapted or original, model.get("revision"))
    config = model.get("config")
    try:
        family = auto.resolve(model["family"], path, config)
    except ValueError as error:
        raise RequestError(str(error)) from error
    return {
        **model,
        "family": auto.headed(family, answers),
        "original_path": original,
        "path": str(path),
        "weights": "random" if config else model["weights"],
        "weights_sha256": None if config else checkpoint_sha256(path),
    }


def find_checkpoint(path: str, revision: str | None = None) -> Path:
    """The folder of a checkpoint: as given, within the project, or in the local hub cache."""
    for folder in (Path(path).expanduser(), plugins.ROOT / path):
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise RequestError(f"{folder} is no checkpoint: it has no config.json")
            return folder.resolve()
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise RequestError(f"no folder {path}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except Exception as error:
        raise RequestError(
            f"model '{path}' is no folder here and not in the local cache; "
            f"`bench fetch --model {path}` gets it from the hub"
        ) from error


def checkpoint_sha256(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RequestError(f"{folder} holds no *.safetensors; only that format is loaded")
    digest = hashlib.sha256()
    for file in [folder / "config.json", *files]:
        digest.update(bytes.fromhex(sha256(file)))
    return digest.hexdigest()
