"""Files that are written as a whole, files at a path given by a user, and answers in a cache.

A file or folder at a path given by a user is replaced or written into only where it is new, empty
or made by this project and not changed since. A folder with such files has a list of them, RECORD,
in the format of sha256sum.

The cache makes repeated commands start sooner: it keeps the configurations that Hydra composes for
requests, and hashes of code. The key of an answer includes everything it depends on, so it is never
outdated; a lost or broken file is made again. The cache is under $XDG_CACHE_HOME or ~/.cache; if
that can't be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError

RECORD = ".longctx-bench"
MOST_FILES = 2000
"""Files of one kind in the cache; if there are more, the older half is deleted."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file next to `path` to be written, which replaces it when the block ends; if the block
    raises an error, `path` stays unchanged. Several processes may replace one file at once."""
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_own(*paths: Path) -> None:
    """Raises RequestError for a file that isn't empty and was changed since it was written here,
    and for a folder that isn't empty and has no RECORD. Paths that don't exist pass."""
    for path in paths:
        _check(path, path.parent)


def write_own(path: Path, data: bytes, folder: Path | None = None) -> None:
    """Write a file at a path given by a user, and list it in the RECORD of `folder`, by default the
    file's folder. Raises RequestError if the file may not be replaced, or can't be written."""
    folder = folder or path.parent
    _check(path, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        record(folder, _line(path, data, folder))
        with replacing(path) as unfinished:
            unfinished.write_bytes(data)
    except OSError as error:
        raise RequestError(f"cannot write to {path.parent}: {error.strerror}") from error


def record_own(path: Path) -> None:
    """Add a file that other code wrote to the RECORD of its folder. Raises OSError."""
    record(path.parent, _line(path, path.read_bytes(), path.parent))


def record(folder: Path, line: str = "") -> None:
    """Add a line to the RECORD of a folder, and make both if needed. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if not line or line not in _recorded(folder):
        with (folder / RECORD).open("a") as file:
            file.write(line)


def _check(path: Path, folder: Path) -> None:
    try:
        if path.is_dir():
            is_own = (path / RECORD).is_file() or not any(path.iterdir())
        elif path.is_file():
            is_recorded = _line(path, path.read_bytes(), folder) in _recorded(folder)
            is_own = is_recorded or not path.stat().st_size
        else:
            is_own = not os.path.lexists(path)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    if not is_own:
        raise RequestError(
            f"{path} holds what bench didn't write, or what was changed since, and is left as it "
            "is; give a path that is new or empty"
        )


def _recorded(folder: Path) -> str:
    path = folder / RECORD
    return path.read_text(errors="replace") if path.is_file() else ""


def _line(path: Path, data: bytes, folder: Path) -> str:
    return f"{hashlib.sha256(data).hexdigest()}  {path.relative_to(folder)}\n"


def read_kept(kind: str, ingredients: Sequence[Any]) -> Any:
    """The value that `keep` stored for these ingredients; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(_kept_path(kind, ingredients).read_text())
    return None


def keep(kind: str, ingredients: Sequence[Any], value: Any) -> None:
    """Keeps a value if reading its JSON gives an equal value."""
    with contextlib.suppress(OSError, TypeError):
        text = json.dumps(value)
        if json.loads(text) != value:
            return
        path = _kept_path(kind, ingredients)
        path.parent.mkdir(parents=True, exist_ok=True)
        others = list(path.parent.iterdir())
        if len(others) >= MOST_FILES:
            others.sort(key=lambda other: other.stat().st_mtime_ns)
            for other in others[: len(others) // 2]:
                other.unlink(missing_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_text(text)


def cache_folder() -> Path:
    """The folder of the cache, which may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "longctx-bench"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _kept_path(kind: str, ingredients: Sequence[Any]) -> Path:
    return cache_folder() / kind / f"{digest(json.dumps(list(ingredients)).encode())}.json"
