"""Errors of a request and of a run, and how they are worded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(Exception):
    """A wrong request: one line with what was given, what is accepted, and the nearest right
    name. Exit code 2."""


class RunError(Exception):
    """A right request that couldn't be carried out, such as one for a hub that can't be reached.
    Exit code 1."""


SYNONYMS = {"gpu": "cuda"}
"""Names that are another's in spelling, and this one's in meaning."""


def unknown(kind: str, given: str, accepted: Iterable[str]) -> RequestError:
    """The error for a name that isn't there."""
    names = sorted(accepted)
    meant = [SYNONYMS[given]] if SYNONYMS.get(given) in names else []
    near = meant or difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return RequestError(f"unknown {kind} '{given}'.{hint} Known: {', '.join(names) or 'none'}")
