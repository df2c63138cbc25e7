"""How a method and its weights came together, and where weights trained here are kept. No torch.

    zero-shot     a checkpoint that saw neither the task nor the method
    swap          trained with vanilla, the method put in when it answers
    finetune      begun at a checkpoint, trained on with the method in it
    from-scratch  begun at random weights, trained with the method in it

A recipe says how to train. A checkpoint is found by its key: a sha256 over all that shapes its
weights. So it is trained once, serves every cell that asks for the same, and no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.columns import PROTOCOLS
from bench.errors import RequestError, unknown
from bench.schema import RecipeConf
from tasks.base import Data, Task

KINDS = {"from-scratch": "from-scratch", "finetune": "finetuned", "swap": "pretrained-swap"}
"""Protocol → `weights_kind` of weights that were trained here."""

SCHEDULES = ("linear", "cosine", "constant", "rsqrt")
DTYPES = ("float32", "bfloat16", "float16")
VERSION = 1
"""Changes when the trainer gives other weights from the same recipe."""

CARD = "card.json"
EMBEDDED_HASHED = 64
"""Rows of an embedded source that are hashed; the others follow from the generator's code."""


def protocol(request: Mapping[str, Any]) -> str | None:
    """The request's protocol, or the one that its model and recipe imply; None for random weights
    that nothing trains. Raises RequestError for what doesn't go together."""
    asked, recipe, model = request.get("protocol"), request.get("recipe"), request["model"]
    name, method = model["name"], request["method"]["name"]
    random = bool(model.get("config"))
    adapted = (model.get("adapted") or {}).get(method)
    if asked is None:
        if recipe:
            return "from-scratch" if random else "finetune"
        return None if random else "finetune" if adapted else "swap"
    if asked not in PROTOCOLS:
        raise unknown("protocol", asked, PROTOCOLS)
    if recipe is None:
        needs = "recipe=NAME (bench ls recipes lists them)"
        if asked == "from-scratch":
            raise RequestError(f"protocol=from-scratch trains: it needs {needs}")
        if asked == "finetune" and not adapted and method != "vanilla":
            raise RequestError(
                f"protocol=finetune trains: it needs {needs}; model {name} has no weights "
                f"adapted to {method}"
            )
        if random:
            raise RequestError(f"protocol={asked}: model {name} has random weights; give {needs}")
    elif asked == "zero-shot":
        raise RequestError("protocol=zero-shot trains nothing: leave the recipe out")
    elif asked == "finetune" and random:
        raise RequestError(
            f"protocol=finetune begins at a checkpoint and model {name} is only a size; "
            "accepted with it: from-scratch, swap"
        )
    return str(asked)


def check(recipe: Mapping[str, Any]) -> None:
    """Raises RequestError for hyper-parameters that can't be used."""
    if unknown_names := set(recipe) - set(RecipeConf.__dataclass_fields__):
        raise unknown("name in a recipe", sorted(unknown_names)[0], RecipeConf.__dataclass_fields__)
    for name, accepted in (("schedule", SCHEDULES), ("dtype", DTYPES)):
        if recipe[name] not in accepted:
            raise unknown(f"recipe.{name}", recipe[name], accepted)
    if (recipe["steps"] is None) == (recipe["epochs"] is None):
        raise RequestError(
            f"recipe {recipe['name']}: give recipe.steps or recipe.epochs, one of them"
        )
    for name in ("steps", "batch", "accumulate", "eval_every", "save_every", "rows", "dev_rows"):
        if recipe[name] is not None and recipe[name] < 1:
            raise RequestError(f"recipe.{name}={recipe[name]}: it must be 1 or more")
    if recipe["batch"] % recipe["accumulate"]:
        raise RequestError(
            f"recipe.batch={recipe['batch']} can't be divided by "
            f"recipe.accumulate={recipe['accumulate']}"
        )


def sized(model: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """The model with its classes and its vocabulary as the task has them, where it is a size that
    leaves them open."""
    config = model.get("config")
    if not config:
        return dict(model)
    told = {"num_labels": task.get("labels"), "vocab_size": task.get("vocabulary")}
    return {**model, "config": {k: v for k, v in told.items() if v is not None} | dict(config)}


def rows_of(task: Task, data: Data, n: int | None) -> int | None:
    """How many rows of a split are read: of an endless source, where n is None, the official
    number."""
    if n is None and data.source == "embedded":
        official: Mapping[str, int] = getattr(task, "n", {})
        return official.get(data.split or "")
    return n


def data_sha256(task: Task, data: Data, recipe: Mapping[str, Any], length: int, seed: int) -> str:
    """sha256 over the rows that a recipe trains on and is judged by. Raises DataError."""
    parts: list[Any] = []
    for split, n in (("train", recipe["rows"]), ("validation", recipe["dev_rows"])):
        where = Data(data.source, data.dir, split)
        n = rows_of(task, where, n)
        some = min(n or EMBEDDED_HASHED, EMBEDDED_HASHED) if data.source == "embedded" else n
        loaded = task.load(where, some, length, seed)
        parts.append([split, n, loaded.sha256])
    return _sha256(parts)


def key(
    method: Mapping[str, Any],
    task: Mapping[str, Any],
    start: Mapping[str, Any],
    data: Mapping[str, Any],
    length: int,
    recipe: Mapping[str, Any],
    seed: int,
    code_sha256: str,
) -> str:
    """The content key of a checkpoint; `start` is the family and the config or weights' hash that
    it begins with."""
    shaping = {k: v for k, v in recipe.items() if k not in ("name", "save_every")}
    return _sha256(
        [VERSION, method, task, start, data, length, shaping, seed, code_sha256],
    )


def folder(checkpoints: Path, task: str, method: str, checkpoint_key: str) -> Path:
    return checkpoints / f"{task}-{method}-{checkpoint_key[:16]}"


def card(place: Path) -> dict[str, Any] | None:
    """What is known of a checkpoint trained here; None where there is none, or not yet."""
    try:
        found: dict[str, Any] = json.loads((place / CARD).read_text())
    except (OSError, ValueError):
        return None
    return found


def check_start(place: str, task: str) -> None:
    """Raises RequestError when a checkpoint trained here is asked about another task."""
    found = card(Path(place))
    if found and found["task"] != task:
        raise RequestError(f"{place} was trained for task {found['task']}, not for {task}")


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
