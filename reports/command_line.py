"""Shared parts of the commands of reports: a progress bar, names of formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from bench.errors import RequestError, unknown


@contextmanager
def progress(text: str) -> Iterator[Callable[[str, int, int], None]]:
    """A transient bar on standard error if that is a terminal. It pulses with the text until the
    first call of `update(text, done, total)`."""
    from rich.progress import Progress

    from bench.terminal.output import clean_console

    console = clean_console(stderr=True)
    hidden, both = not console.is_terminal, sys.stdout.isatty()
    # Output to a file or a pipe is not redirected to the bar's console.
    with Progress(console=console, transient=True, disable=hidden, redirect_stdout=both) as bar:
        task = bar.add_task(text, total=None)
        yield lambda text, done, total: bar.update(
            task, description=text, completed=done, total=total
        )


def formats(text: str, known: Collection[str]) -> list[str]:
    """The formats in a comma-separated text, each once. Raises RequestError for an unknown name or
    an empty text."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise unknown("format", name, known)
    if not names:
        raise RequestError(f"--format is empty; it takes {', '.join(known)}")
    return list(dict.fromkeys(names))
