"""A hook of mkdocs: converts pages written for GitHub for Python-Markdown.

GitHub begins a list without a blank line before it and nests one by two columns; Python-Markdown
needs the line and four columns.
"""

from __future__ import annotations

import re
from typing import Any

ITEM = re.compile(r"( *)(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page before it becomes HTML."""
    return rewritten(markdown)


def rewritten(text: str) -> str:
    """The text with lists that mean the same in both kinds of Markdown; code stays unchanged."""
    lines: list[str] = []
    fenced = in_list = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        item = None if fenced else ITEM.match(line)
        before = lines[-1] if lines else ""
        if item and (in_list or len(item[1]) < 4):
            if before and not in_list:
                lines.append("")
            in_list = True
            line = item[1] + line
        elif not line.strip() or not line.startswith(" "):
            in_list = in_list and bool(before) and bool(line.strip())
        lines.append(line)
    return "\n".join(lines) + "\n"
