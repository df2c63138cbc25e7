"""Standard output and error: text from rows, files and plugins can't control the terminal, and
writing may fail because of the encoding or a full disk."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, begin an escape sequence or change the direction of text; not
newline and tab."""


def clean(text: str) -> str:
    """The text with control characters as escapes, such as \\u001b, which JSON reads back."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class CleanStream:
    """A stream that cleans its text. Consoles of rich write to `rich_proxied_file`."""

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        return int(self.rich_proxied_file.write(clean(text)))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))


def raw(stream: Any) -> Any:
    """The stream below a CleanStream, for text that is already clean and styled."""
    return getattr(stream, "rich_proxied_file", stream)


def accept_any_text(clean_errors: bool = True) -> None:
    """If a stream's encoding lacks a character, write its nearest letters of ASCII. Control
    characters are cleaned; on standard error, where other libraries draw progress bars with them,
    only with `clean_errors`."""
    codecs.register_error("bench", _nearest)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="bench")  # type: ignore[union-attr]
    sys.stdout = CleanStream(raw(sys.stdout))
    if clean_errors:
        sys.stderr = CleanStream(raw(sys.stderr))


def _nearest(error: UnicodeError) -> tuple[str, int]:
    from unidecode import unidecode

    assert isinstance(error, UnicodeEncodeError)
    return unidecode(error.object[error.start : error.end]) or "?", error.end


def flush() -> OSError | None:
    """Write the buffers. Returns the error if this fails, once: the rest is dropped, so that Python
    doesn't complain when it exits."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            problem = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return problem
