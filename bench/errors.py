"""Errors of a request and of a run, and their wording."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator

OWN = ("methods.", "tasks.")
"""Beginnings of the targets of this project's methods and tasks."""
TRACEBACK = "BENCH_TRACEBACK"
"""Environment variable: if it is set, errors are printed with their traceback."""


class RequestError(Exception):
    """A wrong request: one line with the given value, the accepted values and the nearest right
    name. Exit code 2."""


class RunError(Exception):
    """A valid request that couldn't be carried out, for example because the hub can't be reached.
    Exit code 1."""


SYNONYMS = {"gpu": "cuda"}
"""Given name → the accepted name of the same meaning, which its spelling doesn't suggest."""


def unknown(kind: str, given: str, accepted: Iterable[str]) -> RequestError:
    """The error for an unknown name."""
    names = sorted(accepted)
    meant = [SYNONYMS[given]] if SYNONYMS.get(given) in names else []
    near = meant or difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return RequestError(f"unknown {kind} '{given}'.{hint} Known: {', '.join(names) or 'none'}")


@contextlib.contextmanager
def errors_of(name: str, target: str) -> Iterator[None]:
    """Turns errors of the code behind `target` into a RequestError of one line about `name`."""
    try:
        yield
    except (RequestError, RunError):
        raise
    except (Exception, SystemExit) as error:
        message = described(error, target).removeprefix(f"{name}: ")
        raise RequestError(f"{name}: {message}") from error


def print_traceback() -> None:
    """Print the traceback of the error being handled, if the user asks for it."""
    if os.environ.get(TRACEBACK):
        traceback.print_exc(file=sys.stderr)


def described(error: BaseException, target: str = "") -> str:
    """An exception in one line with the file and line that raised it; if it passed through the
    package of `target` ('package.module:Name'), with the last file and line there. A value that
    this project refuses needs no place."""
    message = " ".join(str(error).split())
    if type(error) is ValueError and target.startswith(OWN):
        return message
    if isinstance(error, SyntaxError):
        message, place = error.msg, f"{error.filename}:{error.lineno}"
    else:
        place = raised_at(error, target)
    if type(error) is not ValueError:
        message = f"{type(error).__name__}: {message}".removesuffix(": ")
    return f"{message} ({place})" if place else message


def raised_at(error: BaseException, target: str) -> str:
    """The file and line that raised the error, or its last ones in the package of `target` if one
    is given; empty if the error didn't pass through that package."""
    frames = [
        (frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    top = target.partition(":")[0].partition(".")[0]
    own = [frame for frame in frames if frame[0] == top] if top else frames
    return f"{own[-1][1]}:{own[-1][2]}" if own else ""
