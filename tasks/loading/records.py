"""Records of a benchmark's files, read one at a time, each with its location for error messages.

Zip (a member of JSON lines), .jsonl and .json, plain or gzipped, .parquet and .csv. A file that
can't be read raises DataError with file, line and the expected contents. Zips are read in place as
a stream: SCROLLS' largest is 8 GB.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import math
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.base import DataError
from tasks.loading import json_text, parquet_file
from tasks.loading.sources import first_line

Record = dict[str, Any]
SUFFIXES = (".zip", ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".csv")
MAX_LINE_BYTES = 32 << 20
"""Of one record: about eight million tokens of English, which take several times that in memory."""
MAX_RATIO = 250
"""Unpacked bytes for each packed one: English text has 3 to 5, repeated text more, and deflate's
limit is 1032."""
ALWAYS_UNPACKED_BYTES = 64 << 20
BOM = b"\xef\xbb\xbf"
# Exceptions of zipfile and gzip in the middle of a truncated or damaged file.
BROKEN_ARCHIVE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)


def read(path: Path, member: str = "") -> Iterator[tuple[str, Record]]:
    """(location, record) for each record of a file; `member` names the file within a zip. Blank
    lines of JSON lines are skipped."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return parquet_file.read(path)
    if name.endswith(".csv"):
        return _csv(path)
    if name.endswith((".json", ".json.gz")):
        return _array(path)
    if name.endswith((".zip", ".jsonl", ".jsonl.gz")):
        return _json_lines(path, member)
    raise DataError(f"{path}: can't read this kind of file; accepted: {', '.join(SUFFIXES)}")


def _json_lines(path: Path, member: str = "") -> Iterator[tuple[str, Record]]:
    return ((where, json_object(raw, where)) for where, raw in lines(path, member) if raw.strip())


def size(path: Path, member: str = "") -> int:
    """Bytes to read: the uncompressed size of a zip's member, the file's own size otherwise."""
    if path.suffix.lower() == ".zip":
        with _member(path, member) as (_, info):
            return info.file_size
    return path.stat().st_size


# --- lines ------------------------------------------------------------------------------------


def lines(path: Path, member: str = "") -> Iterator[tuple[str, bytes]]:
    """(location, line) of a text file, plain, gzipped or a zip's member. Lines end at \\n only; a
    byte order mark at the start is left out. Raises DataError for a line of more than
    MAX_LINE_BYTES, without reading all of it."""
    name, line = f"{path}: {member}" if member else str(path), 0
    try:
        with _open(path, member) as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                line += 1
                if len(raw) > MAX_LINE_BYTES:
                    most = f"{MAX_LINE_BYTES >> 20} MiB"
                    raise DataError(f"{name} line {line} is longer than {most}")
                yield f"{name} line {line}", raw.removeprefix(BOM) if line == 1 else raw
    except BROKEN_ARCHIVE as error:
        raise DataError(
            f"{name} is cut short or damaged after line {line}: {first_line(error)}"
        ) from None


@contextmanager
def _open(path: Path, member: str = "") -> Iterator[Any]:
    if path.suffix.lower() == ".zip":
        with _member(path, member) as (archive, info), archive.open(info) as file:
            yield _Unpacked(io.BufferedReader(file), info.compress_size, f"{path}: {member}")
    elif path.suffix == ".gz":
        with gzip.open(path) as file:
            yield _Unpacked(file, path.stat().st_size, str(path))
    else:
        with path.open("rb") as file:
            yield file


class _Unpacked:
    """A file that is decompressed as it is read. A read raises DataError once the output is larger
    than text could decompress to: some kilobytes can hold gigabytes of one letter."""

    def __init__(self, file: Any, packed_bytes: int, name: str) -> None:
        self.file, self.name = file, name
        self.left = max(ALWAYS_UNPACKED_BYTES, MAX_RATIO * packed_bytes)

    def readline(self, limit: int) -> bytes:
        return self._counted(self.file.readline(min(limit, self.left + 1)))

    def read(self) -> bytes:
        return self._counted(self.file.read(self.left + 1))

    def _counted(self, raw: bytes) -> bytes:
        self.left -= len(raw)
        if self.left < 0:
            raise DataError(f"{self.name} unpacks to over {MAX_RATIO} times its size; text doesn't")
        return raw


# --- JSON -------------------------------------------------------------------------------------


def json_object(raw: bytes, where: str) -> Record:
    """The JSON object of one line. Raises DataError."""
    return _checked(json_text.value(raw, where), where)


def _checked(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise DataError(f"{where}: found {type(value).__name__}, expected an object with columns")
    return value


# --- zips -------------------------------------------------------------------------------------


def open_zip(path: Path) -> zipfile.ZipFile:
    """A zip whose member names have been checked. Raises DataError for absolute paths, `..` and
    symbolic links: members are never unpacked into files, but no benchmark publishes such a zip."""
    try:
        archive = zipfile.ZipFile(path)
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path} is not a whole zip file: {first_line(error)}") from None
    for info in archive.infolist():
        name = PurePosixPath(info.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or stat.S_ISLNK(info.external_attr >> 16):
            archive.close()
            raise DataError(
                f"{path} has an unsafe member '{info.filename}'; expected names that stay "
                "within the zip"
            )
    return archive


def member_of(path: Path, split: str) -> str:
    """The member of a zip that is read: its only file of JSON lines, or that of the split; "" if
    the file isn't a zip. Raises DataError."""
    if path.suffix.lower() != ".zip":
        return ""
    with open_zip(path) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
    found = [
        name for name in names if name.suffix.lower() == ".jsonl" and "__MACOSX" not in name.parts
    ]
    if len(found) > 1:
        found = [name for name in found if name.name.startswith(split)]
    if len(found) != 1:
        raise DataError(
            f"{path} holds {', '.join(map(str, names[:8])) or 'nothing'}; expected one file of "
            f"JSON lines, NAME.jsonl, or one for the split, {split}.jsonl"
        )
    return str(found[0])


@contextmanager
def _member(path: Path, member: str) -> Iterator[tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
    with open_zip(path) as archive:
        try:
            info = archive.getinfo(member)
        except KeyError:
            names = ", ".join(sorted(archive.namelist())[:8]) or "nothing"
            raise DataError(f"{path} has no member '{member}'; it holds {names}") from None
        yield archive, info


# --- whole files ------------------------------------------------------------------------------


def _array(path: Path) -> Iterator[tuple[str, Record]]:
    """The objects of a file that is one JSON array (HotpotQA, WikiHop), read as a whole, or of JSON
    lines under the name .json."""
    text = b""
    try:
        with _open(path) as file:
            array = json.loads(text := file.read(), object_pairs_hook=json_text.unique)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.removeprefix(BOM).lstrip().startswith(b"{"):
            yield from _json_lines(path)
            return
        raise DataError(f"{path} line {error.lineno}: broken json: {error.msg}") from None
    except (*BROKEN_ARCHIVE, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {first_line(error)}") from None
    if not isinstance(array, list):
        found = "dict" if isinstance(array, dict) else type(array).__name__
        raise DataError(f"{path}: found {found}, expected an array of objects")
    for number, record in enumerate(array, start=1):
        where = f"{path} entry {number}"
        if problem := json_text.problem_of(record):
            raise DataError(f"{where}{problem}")
        yield where, _checked(record, where)


def _csv(path: Path) -> Iterator[tuple[str, Record]]:
    """The rows under a first line of column names; all values are text."""

    def texts() -> Iterator[str]:
        for where, raw in lines(path):
            try:
                yield raw.decode()
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: not UTF-8 at byte {error.start}") from None

    csv.field_size_limit(MAX_LINE_BYTES)
    rows = csv.reader(texts(), strict=True)
    try:
        names = next(rows, [])
        parquet_file.check_names(names, f"{path} line 1")
        for values in filter(None, rows):
            where = f"{path} line {rows.line_num}"
            if len(values) != len(names):
                columns = ", ".join(names)
                raise DataError(
                    f"{where}: {len(values)} values, expected {len(names)}: {columns:.200}"
                )
            yield where, dict(zip(names, values, strict=True))
    except csv.Error as error:
        raise DataError(f"{path} line {rows.line_num}: broken csv: {error}") from None


# --- columns ----------------------------------------------------------------------------------


def column(record: Record, name: str, where: str) -> Any:
    """A column's value; `a.b` is b of the object in column a, `a.0` the first of a list. DataError
    names the existing columns."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if isinstance(value, list):
            value = dict(zip(map(str, range(len(value))), value, strict=True))
        if not isinstance(value, dict) or part not in value:
            found = value if isinstance(value, dict) else record
            raise DataError(f"{where}: no column '{name}'; found {', '.join(found) or 'none'}")
        value = value[part]
    return value


def text(record: Record, name: str, where: str) -> str:
    """A column that must hold text. DataError reports what was found instead."""
    value = column(record, name, where)
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise DataError(f"{where}: column '{name}' holds {kind}, expected text")
    if problem := json_text.problem_of(value):
        raise DataError(f"{where}: column '{name}'{problem}")
    return value


def optional_text(record: Record, name: str, where: str) -> str:
    """A column of text that may be null or missing: then ""."""
    return "" if record.get(name) is None else text(record, name, where)


def spelled(value: Any, name: str, where: str) -> str:
    """A value of column `name` as text: text itself, a number, true or false, a date or a time.
    Raises DataError for any other value, such as null, NaN, bytes and objects."""
    known = isinstance(value, str | int | Decimal | date | time)
    if not known and not (isinstance(value, float) and math.isfinite(value)):
        found = "null" if value is None else f"{value!r:.60}"
        raise DataError(f"{where}: column '{name}' holds {found}, expected text or a number")
    return str(value)


def texts(record: Record, name: str, where: str) -> tuple[str, ...]:
    """A column of a text, a whole number or a list of them, as texts; null has none."""
    value = column(record, name, where)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in listed):
        raise DataError(f"{where}: column '{name}' holds {value!r:.80}, expected a list of text")
    return tuple(map(str, listed))
