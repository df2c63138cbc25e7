"""Rows in a report: the stored columns, and those that a report adds, such as the folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

Row = dict[str, Any]
One = TypeVar("One")
Key = TypeVar("Key")


def created(row: Row) -> str:
    """The time at which a row was stored, as a key to sort by."""
    return row["created_utc"] or ""


def grouped(ones: Iterable[One], key: Callable[[One], Key]) -> dict[Key, list[One]]:
    """The rows, or other objects, by their key; keys and objects keep their order."""
    groups: dict[Key, list[One]] = {}
    for one in ones:
        groups.setdefault(key(one), []).append(one)
    return groups


@lru_cache(maxsize=1024)
def json_object(text: str | None) -> dict[str, Any]:
    """A column's JSON object, shared by all callers; empty if the column holds anything else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:  # a contributed row
        return {}
    return value if isinstance(value, dict) else {}
