"""rich's console for text from rows, files and plugins."""

from __future__ import annotations

import sys
from typing import Any

import rich.console
from rich.text import Text

from bench.terminal.streams import clean, raw


class Console(rich.console.Console):
    """Writes styles and cleans the styled strings, also those in tables."""

    def __init__(self, stderr: bool = False, **options: Any) -> None:
        super().__init__(file=raw(sys.stderr if stderr else sys.stdout), stderr=stderr, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(clean(text), **options)
