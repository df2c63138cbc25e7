"""Oracles in reports: rows that show a ceiling are marked, and never ranked or recommended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bench.request import plugins
from reports.rows import json_object

ORACLE = "oracle"
"""The kind of such a method, in the facts of its YAML; the mark of its rows."""


@lru_cache(maxsize=4096)
def is_oracle(method: str | None, parameters: str | None) -> bool:
    """Whether a row's method, or the method that read its prompt, is an oracle of this
    installation. `parameters` are the row's, JSON."""
    names = [method]
    with contextlib.suppress(AttributeError):  # a contributed row
        names.append((json_object(parameters).get("prefill") or {}).get("name"))
    return any(plugins.facts(str(name)).get("kind") == ORACLE for name in names)


def marked(name: str, row: Mapping[str, Any]) -> str:
    """The name of a row's method, with a mark if it is an oracle; a report adds the column
    `oracle`."""
    return f"{name} ({ORACLE})" if row.get("oracle") else name
