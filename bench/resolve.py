"""What depends on several parts of a request. A model's YAML has another model that stands in on
some tasks, the parameters that a method's adapted weights were trained with, the longest input that
it reads; an experiment has a number of rows for some tasks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Words
from typing import Any

from bench import plugins

OPEN = ("by_task", "adapted_with", "longest")


def resolved(request: Mapping[str, Any], words: Words[str]) -> dict[str, Any]:
    """A request, as composed from these words, with all of that in it, and gone from its model.
    Raises RequestError."""
    model = _for_task(request["model"], request["task"]["name"])
    longest = model.get("longest")
    rest = {name: value for name, value in request.items() if name != "n_by_task"}
    return {
        **rest,
        "n": _rows(request, words),
        "model": {key: value for key, value in model.items() if key not in OPEN},
        "method": dict(request["method"]) | _as_trained(request, model, words),
        "length": min(request["length"], longest) if longest else request["length"],
    }


def _rows(request: Mapping[str, Any], words: Words[str]) -> int | None:
    by_task = request.get("n_by_task") or {}
    if any(word.lstrip("+").startswith("n=") for word in words):
        by_task = {}
    n: int | None = by_task.get(request["task"]["name"], request["n"])
    return n


def _for_task(model: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """A model that the request changed in any way is meant as it is."""
    other = (model.get("by_task") or {}).get(task)
    if not other or _differs(model, plugins.conf("model", model["name"])):
        return model
    defaults: dict[str, Any] = {"revision": None, "adapted": {}, "config": None}
    return {**defaults, **plugins.conf("model", other)}


def _as_trained(
    request: Mapping[str, Any], model: Mapping[str, Any], words: Words[str]
) -> dict[str, Any]:
    """The method's parameters that the weights adapted to it were trained with; what the words of
    the request give stays as given."""
    if request.get("protocol") not in (None, "finetune") or request.get("recipe"):
        return {}
    given = {word.lstrip("+").split("=")[0].removeprefix("method.") for word in words}
    trained = (model.get("adapted_with") or {}).get(request["method"]["name"], {})
    return {key: value for key, value in trained.items() if key not in given}


def _differs(model: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    return any(model.get(key) != value for key, value in written.items())
