"""Oracles in reports: rows that show a ceiling are marked, and never ranked or recommended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bench.errors import RequestError
from bench.request import plugins

ORACLE = "oracle"
"""The kind of such a method, in the facts of its YAML; the mark of its rows."""


@lru_cache(maxsize=4096)
def is_oracle(method: str | None, parameters: str | None) -> bool:
    """Whether a row's method, or the method that read its prompt, is an oracle of this
    installation. `parameters` are the row's, JSON."""
    try:
        part = json.loads(parameters or "{}").get("prefill") or {}
        names = (method, part.get("name"))
    except (AttributeError, ValueError):  # a contributed row
        names = (method, None)
    return any(_kind(name) == ORACLE for name in names)


def marked(name: str, row: Mapping[str, Any]) -> str:
    """The name of a row's method, with a mark if it is an oracle; a report adds the column
    `oracle`."""
    return f"{name} ({ORACLE})" if row.get("oracle") else name


def _kind(method: str | None) -> str:
    try:
        facts = plugins.conf("method", method).get("facts") if method else None
    except RequestError:
        return ""
    return str(facts.get("kind", "")) if isinstance(facts, Mapping) else ""
