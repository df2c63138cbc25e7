"""Records of any file that a benchmark comes in, one at a time, each with its place for messages.

.zip (a member of json lines), .jsonl and .json, plain or .gz, and .parquet. What can't be read is
a DataError with file, place and what was expected.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks import sources
from tasks.base import DataError

Record = dict[str, Any]
SUFFIXES = (".zip", ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


def read(path: Path, member: str = "") -> Iterator[tuple[str, Record]]:
    """(where, record) for each record of a file; `member` is needed for a zip only."""
    name = path.name.lower()
    if name.endswith(".zip"):
        return sources.records(path, member)
    if name.endswith(".parquet"):
        return _parquet(path)
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _lines(path)
    if name.endswith((".json", ".json.gz")):
        return _array(path)
    raise DataError(f"{path}: can't read this kind of file; accepted: {', '.join(SUFFIXES)}")


def size(path: Path, member: str = "") -> int:
    """Bytes to read: of the member in a zip, of the file as it lies otherwise."""
    if path.suffix.lower() == ".zip":
        return sources.member_bytes(path, member)
    return path.stat().st_size


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[tuple[str, Record]]:
    line = 0
    try:
        with _open(path) as file:
            for line, raw in enumerate(file, start=1):
                where = f"{path} line {line}"
                if raw.strip():
                    yield where, sources.json_object(raw, where)
    except sources.BROKEN_ZIP as error:  # gzip raises the same at a cut file as zipfile does
        raise DataError(
            f"{path} is cut short or damaged after line {line}: {sources.first_line(error)}"
        ) from None


def _array(path: Path) -> Iterator[tuple[str, Record]]:
    """A file that is one json array (HotpotQA, WikiHop). It is read as a whole."""
    try:
        with _open(path) as file:
            found = json.loads(file.read())
    except json.JSONDecodeError as error:
        raise DataError(f"{path} line {error.lineno}: broken json: {error.msg}") from None
    except (*sources.BROKEN_ZIP, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {sources.first_line(error)}") from None
    if not isinstance(found, list):
        raise DataError(f"{path}: found {type(found).__name__}, expected an array of objects")
    for at, record in enumerate(found, start=1):
        where = f"{path} entry {at}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {type(record).__name__}, expected an object")
        yield where, record


def _parquet(path: Path) -> Iterator[tuple[str, Record]]:
    import pyarrow
    from pyarrow import parquet

    at = 0
    try:
        with parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches(batch_size=64):
                for record in batch.to_pylist():
                    at += 1
                    yield f"{path} row {at}", record
    except (pyarrow.ArrowException, OSError) as error:
        why = sources.first_line(error)
        raise DataError(f"{path} is not a whole parquet file after row {at}: {why}") from None
