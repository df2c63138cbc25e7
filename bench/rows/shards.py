"""One parquet shard: checks of the rows to write, and reading of shards of any version."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from bench.errors import RunError
from bench.rows import columns
from bench.rows.columns import COLUMNS, Column, arrow_schema
from bench.rows.comparison import RENAMED

VERSION_KEY = b"longctx_bench_schema"
VERSION_DIGITS = 9
KEY_LETTERS = 16
SINGLE = re.compile(rf"rows-\d{{8}}T\d+Z-[0-9a-f]{{8}}-([0-9a-f]{{{KEY_LETTERS}}})\.parquet")
NEEDED = ("row_id", "cell_key", "status")
LEFTOVER = re.compile(r"\.([0-9a-f]{64}\.lock|(rows|part)-.*\.tmp)")
"""Files that a killed process may leave: the lock of a cell, an unfinished shard."""
ROW_GROUP = 5_000
"""Rows that are read together: few enough to read one row fast, enough to read all rows fast."""

RATIO_16BIT = "kv_ratio_16bit"
RATIO_16BIT_OF = ("kv_bytes_held", "kv_bytes_full", "dtype")
MIGRATIONS: dict[int, Mapping[str, str]] = {1: RENAMED}
"""Version → old names of columns → names in the next version. New columns need no entry: they are
null in older rows."""


class StoreError(RunError):
    """Rows could not be written: one line with the folder and the system's reason."""


class Problem(NamedTuple):
    """A skipped file, and the reason. `kind` is torn (ours, damaged), foreign (not ours), newer (of
    a later schema), unreadable (the system refused), leftover (a killed writer's), or duplicate
    (rows that are also in an earlier file)."""

    path: Path
    kind: Literal["torn", "foreign", "newer", "unreadable", "leftover", "duplicate"]
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}: {self.detail}"


class ShardError(Exception):
    """A shard that can't be read; `problem` is the reason."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def current_name(name: str, version: int = 1) -> str:
    """The current name of a column of a schema version."""
    for old in range(version, columns.SCHEMA_VERSION):
        name = MIGRATIONS.get(old, {}).get(name, name)
    return name


def column_named(name: str) -> Column:
    """The column, or a ValueError with the nearest right name."""
    if name in COLUMNS:
        return COLUMNS[name]
    if (now := current_name(name)) != name:
        raise ValueError(f"column '{name}' is now called '{now}'")
    import difflib

    near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else " bench/rows/columns.py lists them."
    raise ValueError(f"unknown column '{name}'.{hint}")


def checked_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its id, time and schema version, every value of its column's type.

    JSON columns take the object itself or its text. Raises ValueError naming the column.
    """
    checked = {name: checked_value(column_named(name), value) for name, value in row.items()}
    checked["row_id"] = checked.get("row_id") or os.urandom(16).hex()
    for name in NEEDED:
        if not checked.get(name):
            raise ValueError(f"a row needs column '{name}'")
    checked["created_utc"] = checked.get("created_utc") or utc_now().isoformat()
    checked["schema_version"] = columns.SCHEMA_VERSION
    return checked


def checked_value(column: Column, value: Any) -> Any:
    """The value in its stored form. Raises ValueError naming the column for a wrong type."""
    if value is None:
        return None
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if column.type == "json":
        try:
            if not isinstance(value, str):
                return json.dumps(value, sort_keys=True)
            json.loads(value)
            return value
        except (TypeError, ValueError) as error:
            raise ValueError(f"column '{column.name}' takes JSON: {error}") from error
    right = {
        "int64": _is_int(value),
        "float64": _is_int(value) or isinstance(value, float),
        "bool": isinstance(value, bool),
        "string": isinstance(value, str),
        "list<int64>": isinstance(value, (list, tuple)) and all(_is_int(item) for item in value),
    }
    if not right[column.type]:
        given = f"{type(value).__name__} {value!r:.60}"
        raise ValueError(f"column '{column.name}' takes {column.type}, got {given}")
    if column.values and value not in column.values:
        accepted = ", ".join(column.values)
        raise ValueError(f"column '{column.name}' takes one of {accepted}; got '{value}'")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def utc_now() -> datetime:
    return datetime.now(UTC)


def unique_name(stem: str, suffix: str) -> str:
    """A name that no other writer uses, and that sorts by time."""
    return f"{stem}-{utc_now():%Y%m%dT%H%M%S%fZ}-{os.urandom(4).hex()}{suffix}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a new file so that it is complete or absent at any time, and survives a power cut.

    Raises StoreError when the system refuses; then no file is left behind.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(temporary) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot write to {path.parent}: {reason}") from error
    # Make the new name itself survive a power cut, if the file system supports this.
    with contextlib.suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _locked(path: Path) -> BinaryIO:
    """A new file, locked as long as it is open, so that `remove_leftovers` doesn't remove it."""
    while True:
        file = open(path, "xb")  # noqa: SIM115 - the caller closes it
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is removed
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        file.close()  # removed before it was locked


def remove_leftovers(folder: Path) -> None:
    """Remove locks and temporary files of killed processes from a folder: those that no process
    holds. Files whose removal the system refuses stay."""
    for path in filter(lambda path: LEFTOVER.fullmatch(path.name), folder.glob(".*")):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                path.unlink()


def write_shard(folder: Path, table: Any) -> Path:
    """Store a table of all columns as one new shard. Raises StoreError.

    The name of a single row's shard ends in its cell's key, so that a search for another cell
    needn't open it: a sweep on a cluster writes thousands, and each of its jobs searches them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    version = {VERSION_KEY: str(columns.SCHEMA_VERSION).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(version),
        sink,
        compression="snappy",  # on shards of one row, zstd reads two times slower
        row_group_size=ROW_GROUP,
        write_page_checksum=True,
    )
    of = f"-{table['cell_key'][0].as_py()[:KEY_LETTERS]}" if table.num_rows == 1 else ""
    path = folder / unique_name("rows", f"{of}.parquet")
    write_whole(path, sink.getvalue().to_pybytes())
    return path


def may_hold(path: Path, cell_key: str) -> bool:
    """Whether the shard, by its name, may contain a row of this cell."""
    named = SINGLE.fullmatch(path.name)
    return named is None or named[1] == cell_key[:KEY_LETTERS]


def read_shard(path: Path, names: Collection[str], row: int | None = None) -> Any:
    """Columns `names` of a shard as a table of the current schema; with `row`, only this row.

    Raises ShardError for a file that is damaged, not ours, or of a newer schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stored = file.schema_arrow
            version = schema_version(stored.metadata)
            if version is None:
                raise ShardError(Problem(path, "foreign", "not a file of rows"))
            if version > columns.SCHEMA_VERSION:
                detail = f"schema {version}, this version reads up to {columns.SCHEMA_VERSION}"
                raise ShardError(
                    Problem(path, "newer", f"{detail}; update longctx-bench to read it")
                )
            today = {name: current_name(name, version) for name in stored.names}
            follows = RATIO_16BIT in names and RATIO_16BIT not in stored.names
            needed = {*names, *(RATIO_16BIT_OF if follows else ())}
            table = _read(file, [name for name, now in today.items() if now in needed], row)
        table = table.rename_columns([today[n] for n in table.column_names])
        return _complete(_with_ratio(table) if follows else table, names)
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            problem = Problem(path, "unreadable", error.strerror or str(error))
        else:  # only a file with a name of our form can be a torn shard of ours
            ours, reason = path.name.startswith("rows-"), str(error).splitlines()[0]
            problem = Problem(path, "torn" if ours else "foreign", reason)
        raise ShardError(problem) from error


def schema_version(metadata: Mapping[bytes, bytes] | None) -> int | None:
    """The schema of a file's rows by its metadata; None for a file that isn't ours."""
    stamp = (metadata or {}).get(VERSION_KEY, b"")
    # Python refuses to read numbers of some thousand digits.
    return int(stamp) if stamp.isdigit() and len(stamp) <= VERSION_DIGITS else None


def _read(file: Any, names: list[str] | None, row: int | None) -> Any:
    if row is None:
        several = file.metadata.num_rows > ROW_GROUP  # threads slow small files down
        return file.read(columns=names, use_threads=several)
    group = 0
    while row >= (size := file.metadata.row_group(group).num_rows):
        row, group = row - size, group + 1
    return file.read_row_group(group, columns=names, use_threads=False).slice(row, 1)


def _with_ratio(table: Any) -> Any:
    """A table of an older version with `row_facts.kv_ratio_16bit`, for rows with decoding."""
    import pyarrow.compute as pc

    if not set(RATIO_16BIT_OF) <= set(table.column_names):
        return table
    held, full, dtype = (table[name] for name in RATIO_16BIT_OF)
    halves = pc.if_else(pc.equal(dtype, "float64"), 4.0, 1.0)
    halves = pc.if_else(pc.equal(dtype, "float32"), 2.0, halves)
    return table.append_column(RATIO_16BIT, pc.divide(pc.multiply(held, halves), full))


def _complete(table: Any, names: Collection[str]) -> Any:
    """`table` with exactly the columns `names`; missing ones are null. Raises ValueError, of
    pyarrow or naming the column, for a value that is never written."""
    import pyarrow as pa

    stored = set(table.column_names)  # each reading of column_names makes the list again
    present = table.select([name for name in names if name in stored])
    present.validate(full=True)  # also whether text is UTF-8
    for name in present.column_names:
        column, values = COLUMNS[name], present[name]
        if name in NEEDED and values.null_count:
            raise ValueError(f"a row needs column '{name}'")
        if column.values or column.type == "json":
            for value in values.unique().to_pylist():
                checked_value(column, value)
    return pa.concat_tables(
        [pa.Table.from_batches([], schema=arrow_schema(names)), present], promote_options="default"
    )
