"""What a model's YAML makes of a request: another model that stands in on some tasks, the
parameters that a method's adapted weights were trained with, the longest input that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import plugins

OPEN = ("by_task", "adapted_with", "longest")


def resolved(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with all of that in it, and gone from its model; resolved twice is the same.
    Raises RequestError."""
    model = _for_task(request["model"], request["task"]["name"])
    longest = model.get("longest")
    return {
        **request,
        "model": {key: value for key, value in model.items() if key not in OPEN},
        "method": _as_trained(request, model),
        "length": min(request["length"], longest) if longest else request["length"],
    }


def _for_task(model: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """A model that the request changed in any way is meant as it is."""
    other = (model.get("by_task") or {}).get(task)
    if not other or _differs(model, plugins.conf("model", model["name"])):
        return model
    defaults: dict[str, Any] = {"revision": None, "adapted": {}, "config": None}
    return {**defaults, **plugins.conf("model", other)}


def _as_trained(request: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The method; on weights adapted to it, what the request leaves at its default is as it was in
    training."""
    method = dict(request["method"])
    trained = (model.get("adapted_with") or {}).get(method["name"], {})
    uses_adapted = request.get("protocol") in (None, "finetune") and not request.get("recipe")
    if trained and uses_adapted:
        written = plugins.conf("method", method["name"])
        unchanged = {key for key in trained if method.get(key) == written.get(key)}
        method |= {key: trained[key] for key in unchanged}
    return method


def _differs(model: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    return any(model.get(key) != value for key, value in written.items())
