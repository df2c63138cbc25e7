"""The words of a request that a shell may complete. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.errors import RequestError
from bench.request import plugins, schema
from bench.request.compose import BY_TASK
from bench.request.overrides import GROUPS, PATHS

VALUES = {"dtype": schema.DTYPES, "measure": schema.MEASURES, "probe": schema.PROBES}


def completed(given: Sequence[str], word: str) -> list[str]:
    """The words NAME= or NAME=VALUE that `word` may become, after the words given."""
    with contextlib.suppress(RequestError):
        found = _values(word) if "=" in word else _names(given)
        return sorted({each for each in found if each.startswith(word)})
    return []


def _names(given: Sequence[str]) -> Iterable[str]:
    """NAME= of a request, and the parameters of the methods that it names."""
    chosen = dict(word.split("=", 1) for word in given if "=" in word)
    fields = {*schema.NAMES, *GROUPS, "data.dir"} - {*BY_TASK}
    for name in chosen.get("method", "").split(","):
        with contextlib.suppress(RequestError):
            content = plugins.conf("method", name)
            fields |= {f"method.{key}" for key in content.keys() - {*plugins.NOT_PARAMETERS}}
    return (f"{name}=" for name in fields if name not in chosen)


def _values(word: str) -> Iterable[str]:
    """Whole words NAME=VALUE; after a comma a value more."""
    name, _, value = word.partition("=")
    if name in PATHS and ("/" in value or name not in GROUPS):
        return (f"{name}={path}" for path in _paths(value))
    choices: Iterable[str] = plugins.available(name) if name in GROUPS else VALUES.get(name, ())
    before, comma, _ = value.rpartition(",")
    return (f"{name}={before}{comma}{each}" for each in choices if each not in before.split(","))


def _paths(value: str) -> Iterable[str]:
    folder, _, _ = value.rpartition("/")
    start = Path(os.path.expanduser(folder or ("/" if value.startswith("/") else ".")))
    if start.is_dir():
        for path in start.iterdir():
            prefix = f"{folder}/" if "/" in value else ""
            yield f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
