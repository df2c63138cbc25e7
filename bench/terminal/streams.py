"""Standard output and error that can't take what is written: another encoding, a full disk."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys


def accept_any_text() -> None:
    """Where a stream's encoding lacks a character, write its nearest letters of ASCII."""
    codecs.register_error("bench", _nearest)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="bench")  # type: ignore[union-attr]


def _nearest(error: UnicodeError) -> tuple[str, int]:
    from unidecode import unidecode

    assert isinstance(error, UnicodeEncodeError)
    return unidecode(error.object[error.start : error.end]) or "?", error.end


def flush() -> OSError | None:
    """Write what is buffered. Returns why it can't be, once: what is left is dropped, so that
    Python doesn't complain when it exits."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            problem = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return problem
