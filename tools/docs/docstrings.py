"""An extension of griffe: shows columns of names and meanings in docstrings as Markdown lists."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

COLUMN = re.compile(r"^(\w[\w, ]*?)  +(\S.*)$")


class Columns(Extension):  # type: ignore[misc]
    """Rewrites each docstring that is loaded."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """`name    meaning`, with its continuation lines, as items of a list."""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        column = COLUMN.match(line)
        if column:
            lines += ["", f"- **`{column[1]}`**: {column[2]}"]
        else:
            lines.append(f"    {line.strip()}" if within and line.startswith("    ") else line)
        within = bool(column) or (within and line.startswith("    "))
    return "\n".join(lines)
