"""The command of a cell: the shortest `bench run …` that composes to it, on any machine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.request import kv_budget, parameters, plugins, protocol
from bench.request.cell import Cell, task_of
from bench.request.compose import FROM_REQUEST, compose
from bench.request.overrides import quoted
from bench.request.values import decoded_tokens

DATA, MODEL = "DATA", "MODEL"
"""Names that replace the paths of data and of a checkpoint in a command."""
SAME_NAME = ("length", "n", "batch", "dtype", "seed", "new_tokens", "question", "turns", "fill",
             "probe", "skip_unanswerable")  # fmt: skip
"""Names of a request under which a cell keeps its values, too."""
PLAIN = re.compile(r"[A-Za-z][\w.-]*")
"""Text that Hydra reads unquoted."""


def of(cell: Cell, deadline_s: float | None = None) -> str:
    """The shortest command that composes to the cell: it gives each value that differs from those
    that its method, task, model and recipe imply, and the threads, whose default depends on the
    machine. `deadline_s` is of the run, not of the cell; it is given unless it is the default.

    Raises RequestError for a method, task, model or recipe that no longer exists."""
    words = [f"method={cell.method['name']}", f"task={cell.task['name']}"]
    if cell.recipe:
        words.append(f"recipe={cell.recipe['name']}")
    base = compose(words)
    if model := _model(cell, base["model"]):
        words += model
        base = compose(words)
    if cell.device["name"] != base["device"]["name"]:
        words.append(f"device={cell.device['name']}")
    # Both change what other words imply.
    changed = []
    if cell.protocol != protocol.protocol_of(base):
        changed.append(f"protocol={cell.protocol}")
    if cell.measure != base["measure"]:
        changed.append(f"measure={cell.measure}")
    if changed:
        words += changed
        base = compose(words)
    words += _data(cell)
    words += _requested(cell, base)
    words += _differing("method", cell.method, base["method"])
    words += _differing("task", cell.task, base["task"])
    config = protocol.sized(base["model"], base["task"]).get("config")
    words += _differing("model.config", cell.model.get("config"), config)
    words += _differing("recipe", cell.recipe, base["recipe"])
    if deadline_s not in (None, base["deadline_s"]):
        words.append(f"deadline_s={deadline_s:g}")
    if len(model) > 1:  # a checkpoint, which is composed by its path
        path = cell.model.get("original_path", cell.model["path"])
        first = words.index(model[0])
        words[first : first + len(model)] = [f"model={MODEL if Path(path).is_absolute() else path}"]
    return shlex.join(["bench", "run", *words])


def _model(cell: Cell, implied: Mapping[str, Any]) -> list[str]:
    name, path = cell.model["name"], cell.model.get("original_path", cell.model["path"])
    if (name, path) == (implied["name"], implied["path"]):
        return []
    if name in plugins.available("model"):
        return [f"model={name}"]
    return ["model=checkpoint", quoted("model.path", path), quoted("model.name", name)]


def _data(cell: Cell) -> Iterator[str]:
    source, split = cell.data["source"], cell.data["split"]
    if source != "embedded":
        yield f"data={source}"
    if source == "local":
        yield f"data.dir={DATA}"
    if split != (getattr(task_of(cell.task), "default_split", "") or split):
        yield f"data.split={split}"


def _requested(cell: Cell, implied: Mapping[str, Any]) -> Iterator[str]:
    implied = {**implied, "new_tokens": decoded_tokens(implied)}
    for name in SAME_NAME:
        if (value := getattr(cell, name)) != implied[name]:
            yield f"{name}={_text(value)}"
    yield f"threads={cell.threads}"


def _differing(
    part: str, values: Mapping[str, Any] | None, implied: Mapping[str, Any] | None
) -> Iterator[str]:
    """A word for each value of a part of the request that isn't the implied one."""
    for name, value in (values or {}).items():
        is_implied = (implied or {}).get(name, ...) == value
        if is_implied or name in (*plugins.NOT_PARAMETERS, *FROM_REQUEST):
            continue
        key = f"{part}.{name}"
        if plugins.is_part(value):
            yield f"{key}={_method_within(value)}"
        elif isinstance(value, str) and not PLAIN.fullmatch(value):
            yield quoted(key, value)
        else:
            word = f"{key}={_text(value)}"
            short = word.removeprefix("method.")
            is_same = key == kv_budget.PARAMETER and kv_budget.as_parameter(short) == word
            yield short if is_same else word


def _method_within(conf: Mapping[str, Any]) -> str:
    """`method.prefill=` of a method within a method: its name, with its parameters where some
    differ from its defaults."""
    defaults = parameters.resolved({parameters.PART: conf["name"]})[parameters.PART]
    differing = {name: value for name, value in conf.items() if defaults.get(name, ...) != value}
    if not differing:
        return str(conf["name"])
    given = {"name": conf["name"], **differing}
    return f"{{{','.join(f'{name}:{_text(value)}' for name, value in given.items())}}}"


def _text(value: Any) -> str:
    """A value as Hydra's grammar reads it."""
    return value if isinstance(value, str) else json.dumps(value)
