"""The inputs that generated rows become for a length and a tokenizer, kept in the cache folder:
they are written once, not by each process of each run.

A folder's name is a hash of all that its rows follow from: the code of the task, its settings, the
source, split, length, seed, questions for each text, and the content of the tokenizer. A file's
name is how many rows it holds, in order; what asks for fewer reads a larger file's first ones. No
right answer is in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench.files import replacing
from bench.request import code_hash, kept
from bench.request.cell import METRICS, Cell
from bench.request.protocol import json_sha256
from tasks.base import Encoded, Row, Task
from tasks.generated import GeneratedRow

MOST_BYTES = 1 << 30
"""Of all files; those that were used longest ago go first. A quarter for one file."""
ARRAYS = ("ids", "vip", "ends", "tokens_in", "rows")
"""Of a file: ids and VIP marks of all rows in a line, where each row ends, its tokens before
truncation, its id."""
DAMAGED = (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)


def encoded(cell: Cell, task: Task, rows: Sequence[Row], tokenizer: Any) -> list[Encoded]:
    """The inputs of the first rows of a cell. Only generated ones are kept, for tokenizers whose
    whole content is known: those of the tokenizers library. Raises DataError as `task.encode`."""
    generated = bool(rows) and isinstance(rows[0], GeneratedRow)
    if not generated or not hasattr(tokenizer, "backend_tokenizer"):
        return [task.encode(row, tokenizer, cell.length) for row in rows]
    folder = kept.folder() / "rows" / _key(cell, tokenizer)
    found = _stored(folder, rows)
    if found is None:
        found = [task.encode(row, tokenizer, cell.length) for row in rows]
        with contextlib.suppress(OSError):  # a full or read-only disk: then they aren't kept
            _store(folder, rows, found)
    return found


def _key(cell: Cell, tokenizer: Any) -> str:
    # A plugin's task: its own code, and what it is built on.
    targets = [cell.task["target"], GeneratedRow.__module__]
    code = code_hash.code_sha256(targets, without=[METRICS])
    # The hash of embedded rows is one of their code and number, which the key and the name have.
    content = None if cell.data["source"] == "embedded" else cell.data["sha256"]
    tokenizing = [
        type(tokenizer).__name__,
        hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        tokenizer.eos_token_id,
        *map(version, ("tokenizers", "transformers")),
    ]
    data = [cell.data["source"], cell.data["split"], content]
    key = [code, dict(cell.task), data, cell.length, cell.seed, cell.turns, tokenizing]
    return json_sha256(key)[:32]


def _stored(folder: Path, rows: Sequence[Row]) -> list[Encoded] | None:
    """None where they aren't there. A damaged file is removed."""
    sizes = sorted(int(path.stem) for path in folder.glob("*.npz") if path.stem.isdigit())
    for size in sizes:
        path = folder / f"{size}.npz"
        if size < len(rows):
            continue
        try:
            found = _read(path, len(rows))
            if [row_id for row_id, _ in found] == [row.id for row in rows]:
                os.utime(path)
                return [one for _, one in found]
        except DAMAGED:
            with contextlib.suppress(OSError):
                path.unlink()
    return None


def _read(path: Path, n: int) -> list[tuple[str, Encoded]]:
    with np.load(path, allow_pickle=False) as arrays:
        ids, vip, ends, tokens_in, names = (arrays[name] for name in ARRAYS)
    bounds = [0, *ends.tolist()]
    return [
        (
            str(names[i]),
            Encoded(
                ids[bounds[i] : bounds[i + 1]].tolist(),
                vip[bounds[i] : bounds[i + 1]].tolist(),
                int(tokens_in[i]),
            ),
        )
        for i in range(n)
    ]


def _store(folder: Path, rows: Sequence[Row], made: Sequence[Encoded]) -> None:
    lengths = [len(one.ids) for one in made]
    if 5 * sum(lengths) > MOST_BYTES / 4:
        return
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (
        np.concatenate([np.asarray(one.ids, dtype=np.int32) for one in made]),
        np.concatenate([np.asarray(one.vip, dtype=bool) for one in made]),
        np.cumsum(lengths),
        np.array([one.tokens_in for one in made]),
        np.array([row.id for row in rows]),
    )
    named: dict[str, Any] = dict(zip(ARRAYS, arrays, strict=True))
    with replacing(folder / f"{len(rows)}.npz") as unfinished, unfinished.open("wb") as file:
        np.savez(file, **named)
    _make_room(folder.parent)


def _make_room(folder: Path) -> None:
    files = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):  # another process removed it
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    excess = sum(size for _, size, _ in files) - MOST_BYTES
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        excess -= size
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()  # where it was the last
