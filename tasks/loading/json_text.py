"""JSON texts of data files. Duplicate keys of an object and text that isn't Unicode are errors;
Python's reader would accept the last value and any half of a surrogate pair."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tasks.base import DataError
from tasks.loading.sources import first_line


class _Twice(dict[str, Any]):
    """A JSON object with a duplicate `key`."""

    key: str


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object_pairs_hook for values that `problem_of` checks."""
    found = dict(pairs)
    if len(found) < len(pairs):
        found = _Twice(found)
        found.key = Counter(name for name, _ in pairs).most_common(1)[0][0]
    return found


def problem_of(value: Any) -> str:
    """The reason why a value read with `unique` is rejected, to follow its location; "" if it is
    accepted."""
    if isinstance(value, _Twice):
        return f": key {value.key!r} comes twice in one object; expected each key once"
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON can spell a lone surrogate; tokenizers reject it
            return f" is not Unicode: {error.reason}"
    if isinstance(value, list):
        for number, part in enumerate(value, start=1):
            if found := problem_of(part):
                return f": entry {number}{found}"
    for name, part in value.items() if isinstance(value, dict) else ():
        if found := problem_of(part) or problem_of(name):
            return f": column {name!r}{found}"
    return ""


def value(raw: bytes, where: str) -> Any:
    """The value of a JSON text. DataError gives the location and the problem: invalid JSON, a
    duplicate key, or text that isn't Unicode."""
    try:
        content = json.loads(raw, object_pairs_hook=unique)
        problem = problem_of(content)
    except UnicodeDecodeError as error:
        problem = f": not UTF-8: {error.reason} at byte {error.start}"
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        problem = f": broken json at {line}column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        problem = f": broken json: {first_line(error)}"
    if problem:
        raise DataError(f"{where}{problem}")
    return content
