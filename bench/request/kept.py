"""Answers that are kept on disk, so that a command that has been given before starts sooner: what
Hydra composes of a request, and hashes of code. An answer is found by all that it follows from, so
it is never an old one; a file that is lost or broken is made anew.

They lie under $XDG_CACHE_HOME or ~/.cache; where that can't be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.files import replacing

MOST_FILES = 2000
"""Files of one kind; if there are more, the older half is deleted."""


def read(kind: str, ingredients: Sequence[Any]) -> Any:
    """What `write` kept for these ingredients; None where there is nothing."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(_path(kind, ingredients).read_text())
    return None


def write(kind: str, ingredients: Sequence[Any], value: Any) -> None:
    """Keeps a value if reading its JSON gives an equal value."""
    with contextlib.suppress(OSError, TypeError):
        text = json.dumps(value)
        if json.loads(text) != value:
            return
        path = _path(kind, ingredients)
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        with replacing(path) as unfinished:
            unfinished.write_text(text)


def folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "longctx-bench"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _path(kind: str, ingredients: Sequence[Any]) -> Path:
    return folder() / kind / f"{digest(json.dumps(list(ingredients)).encode())}.json"


def _make_room(kind: Path) -> None:
    files = list(kind.iterdir())
    if len(files) < MOST_FILES:
        return
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)[: len(files) // 2]:
        path.unlink(missing_ok=True)
