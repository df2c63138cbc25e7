"""Files that are written as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to be written, which replaces it when the block ends; where that raises
    an error, `path` stays as it was. Several processes may replace one file at once."""
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
