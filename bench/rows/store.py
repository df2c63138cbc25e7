"""Rows in append-only parquet shards, and predictions in append-only shards of JSON lines.

A shard is written under a temporary name, synced, and renamed, so that it is whole or absent
even if its writer is killed, and any number of processes may append to one folder. No row is ever
changed. Rows come in the order of their shards' names, which begin with the time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import RequestError
from bench.request import plugins
from bench.rows.columns import COLUMNS, Row, arrow_schema
from bench.rows.shards import (
    Problem,
    ShardError,
    StoreError,
    checked_row,
    checked_value,
    column_named,
    may_hold,
    read_shard,
    unique_name,
    write_shard,
    write_whole,
)
from bench.status import Status

LIGHT = [name for name, column in COLUMNS.items() if not column.type.startswith("list")]
PREDICTIONS = "predictions"
"""A folder of this name holds no rows, and has too many files to search for each cell."""
LEFTOVER_S = 3600.0
"""The writer of a temporary file older than this is dead."""


class _Place(NamedTuple):
    """The place of a stored row; the greatest place of a cell is the row to use."""

    ok: bool
    attempt: int
    created_utc: str
    path: Path
    row: int


class Store:
    """The rows of a folder and its subfolders, or of one parquet file.

    Reading never fails for one bad file: it is skipped and named in `warnings`, which belongs to
    the last read. Each read sees rows that other processes have appended. Rows that no longer
    count have the status that `retired_rules` gives them, unless rows are read `as_stored`.
    """

    def __init__(self, folder: str | Path, as_stored: bool = False) -> None:
        self.folder = Path(folder)
        self._rules = () if as_stored else retired_rules()
        self.problems: list[Problem] = []
        self._places: dict[str, list[_Place]] = {}
        self._indexed: set[Path] = set()

    @property
    def warnings(self) -> list[str]:
        """One line for each file that the last read skipped."""
        return [str(problem) for problem in self.problems]

    def append(self, rows: Iterable[Mapping[str, Any]]) -> Path | None:
        """Store `rows` as one new shard and return its path; None when there are no rows.

        Columns that a row leaves out are null; `row_id` and `created_utc` are filled in.
        Raises ValueError naming a column that is unknown or of a wrong type, and StoreError when
        the folder can't be written; either way nothing is stored and earlier rows are untouched.
        """
        import pyarrow as pa

        checked = [checked_row(row) for row in rows]
        if not checked:
            return None
        return write_shard(self.folder, pa.Table.from_pylist(checked, schema=arrow_schema()))

    def rows(
        self, columns: Collection[str] | None = None, where: Mapping[str, Any] | None = None
    ) -> Any:
        """All rows as a `pyarrow.Table`, each row id once.

        `columns` are the columns to read, in order (default: all). `where` maps a column to its
        required value, or to a list of accepted values; None means null.
        Raises ValueError for an unknown column.
        """
        import pyarrow as pa

        names = list(COLUMNS if columns is None else columns)
        where = where or {}
        wanted = list(dict.fromkeys([*names, *where, "row_id"]))
        for name in wanted:
            column_named(name)
        tables = [_matching(table, where) for _, table in self._read(self.shards(), wanted)]
        # Neither this nor _distinct makes an array from Python values: pyarrow would import pandas.
        empty = pa.Table.from_batches([], schema=arrow_schema(wanted))
        return _distinct(pa.concat_tables([empty, *tables])).select(names)

    def find(self, cell_key: str) -> Row | None:
        """The row of the last attempt at a cell, ok rows before others, without its lists of
        samples; the newest row of that attempt."""
        self._update_index(cell_key)
        for place in sorted(self._places.get(cell_key, ()), reverse=True):
            try:
                table = read_shard(place.path, LIGHT, place.row)
                row: Row = marked(table, self._rules).to_pylist()[0]
                return row
            except ShardError as error:
                self.problems.append(error.problem)
        return None

    def last_attempt(self, cell_key: str) -> int:
        """The number of the last attempt at a cell; 0 if there is none."""
        self._update_index(cell_key)
        return max((place.attempt for place in self._places.get(cell_key, ())), default=0)

    def shards(self) -> list[Path]:
        """The parquet files, oldest first; names that begin with a dot are skipped."""
        if self.folder.is_file():
            return [self.folder]
        paths: list[Path] = []
        for folder, inner, files in os.walk(self.folder):
            inner[:] = [name for name in inner if name[0] != "." and name != PREDICTIONS]
            paths += [Path(folder, f) for f in files if f[0] != "." and f.endswith(".parquet")]
        return sorted(paths, key=lambda path: (path.name, path))

    def _read(self, paths: Iterable[Path], names: list[str]) -> Iterator[tuple[Path, Any]]:
        self.problems = []
        also = [name for rule in self._rules for name in (*RETIRED_COLUMNS, *rule.where)]
        read = list(dict.fromkeys([*names, *also]))
        for path in paths:
            try:
                yield path, marked(read_shard(path, read), self._rules).select(names)
            except ShardError as error:
                self.problems.append(error.problem)

    def _update_index(self, cell_key: str) -> None:
        """Read only new shards that may hold the cell: sweeps look up each cell, and shards don't
        change."""
        paths = self.shards()
        if not self._indexed <= set(paths):
            self._places, self._indexed = {}, set()
        new = [p for p in paths if p not in self._indexed and may_hold(p, cell_key)]
        for path, table in self._read(new, ["cell_key", "status", "attempt", "created_utc"]):
            self._indexed.add(path)
            values = (column.to_pylist() for column in table.columns)
            for row, (key, status, attempt, created) in enumerate(zip(*values, strict=True)):
                place = _Place(status == "ok", attempt or 1, created or "", path, row)
                self._places.setdefault(key, []).append(place)


def _matching(table: Any, where: Mapping[str, Any]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, value in where.items():
        several = isinstance(value, Collection) and not isinstance(value, str)
        kind = table.schema.field(name).type
        try:
            values = pa.array(list(value) if several else [value], kind)
            table = table.filter(pc.is_in(table[name], value_set=values))
        except pa.ArrowException as error:
            raise ValueError(f"column '{name}' holds {kind}, it can't be {value!r}") from error
    return table


def _distinct(table: Any) -> Any:
    """The first row of each row id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.count_distinct(table["row_id"], mode="all").as_py() == table.num_rows:
        return table
    first: dict[Any, int] = {}
    for i, row_id in enumerate(table["row_id"].to_pylist()):
        first.setdefault(row_id, i)
    return pa.concat_tables(table.slice(i, 1) for i in first.values()).combine_chunks()


class Merged(NamedTuple):
    """The number of rows that a merge added, of rows already present, and the skipped files."""

    added: int
    present: int
    warnings: list[str]


def merge(sources: Iterable[str | Path], target: str | Path) -> Merged:
    """Copy the rows of folders or files into `target`: one shard a source, each row id once.

    Sources are unchanged, and merging twice adds nothing. Merging a folder of many small shards
    into a new folder gives the same rows in one shard, which reads much faster.
    Raises StoreError when a source doesn't exist or the target can't be written.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    into = Store(target)
    present = into.rows(["row_id"])["row_id"]
    warnings = into.warnings
    added = seen = 0
    for source in sources:
        if not Path(source).exists():
            raise StoreError(f"cannot merge {source}: it does not exist")
        store = Store(source, as_stored=True)
        rows = store.rows()
        new = rows.filter(pc.invert(pc.is_in(rows["row_id"], value_set=present)))
        if new.num_rows:
            write_shard(into.folder, new)
        warnings += store.warnings
        added, seen = added + new.num_rows, seen + rows.num_rows - new.num_rows
        present = pa.chunked_array([*present.chunks, *new["row_id"].chunks], pa.string())
    return Merged(added, seen, warnings)


def check(folder: str | Path, repair: bool = False) -> list[Problem]:
    """Read every value of every shard and list the problems.

    `repair` renames torn shards to `*.torn` and removes temporary files of killed writers. Foreign
    files and those of newer versions are never touched, and duplicate rows are harmless.
    Raises StoreError when a repair is refused.
    """
    store = Store(folder)
    seen: set[str] = set()
    duplicates = []
    for path, table in store._read(store.shards(), list(COLUMNS)):
        ids = set(table["row_id"].to_pylist())
        if count := len(ids & seen) + table.num_rows - len(ids):
            duplicates.append(Problem(path, "duplicate", f"{count} rows are stored twice"))
        seen |= ids
    problems = list(store.problems)
    for path in store.folder.rglob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):  # its writer has finished meanwhile
            if time.time() - path.stat().st_mtime > LEFTOVER_S:
                reason = "its writer was killed; no row depends on it"
                problems.append(Problem(path, "leftover", reason))
    for path, kind, _ in problems if repair else ():
        try:
            if kind == "torn":
                path.rename(path.with_name(path.name + ".torn"))
            elif kind == "leftover":
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot repair {path}: {error.strerror}") from error
    return [*problems, *duplicates]


# Rows that no longer count. `retired.yaml` in a folder of configuration lists them with the reason,
# by their ids or by the versions in their columns:
#
#     retired:
#       - where: {method: vcc, method_version: "0123456789ab"}
#         reason: the blocks of a padded batch were shifted by one token; repaired in 0.2.0
#
# A store reads such a row with the status `retired` and the reason as its `status_detail`: every
# view marks it, none ranks it, and its cell may be run again. The files of rows are not changed.

RETIRED_COLUMNS = ("status", "status_detail")
"""The columns that are replaced when a row that no longer counts is read."""


class RetiredRule(NamedTuple):
    """`where`: column → the values of the rows that don't count."""

    where: Mapping[str, list[Any]]
    reason: str


@functools.cache
def retired_rules() -> tuple[RetiredRule, ...]:
    """Rules of the project and of plugins. Raises RequestError for a file that can't be read."""
    found = []
    for folder in plugins.conf_dirs():
        path = folder / "retired.yaml"
        entries = plugins.read(path)["retired"] if path.is_file() else ()
        for number, entry in enumerate(entries, 1):
            try:
                where = {
                    name: [checked_value(column_named(name), v)
                           for v in (values if isinstance(values, list) else [values])]
                    for name, values in entry["where"].items()
                }  # fmt: skip
                found.append(RetiredRule(where, str(entry["reason"])))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise RequestError(f"{path}: entry {number} of retired: {error}") from error
    return tuple(found)


def marked(table: Any, rules: Iterable[RetiredRule]) -> Any:
    """A table with RETIRED_COLUMNS and the columns of the rules, in which rows that no longer count
    have the status `retired`, with the reason as its detail."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for rule in rules:
        fits = [
            pc.is_in(table[name], value_set=pa.array(values, table.schema.field(name).type))
            for name, values in rule.where.items()
        ]
        for name, text in zip(RETIRED_COLUMNS, (str(Status.RETIRED), rule.reason), strict=True):
            values = pc.if_else(functools.reduce(pc.and_, fits), text, table[name])
            table = table.set_column(table.column_names.index(name), name, values)
    return table


# Predictions: a metric is a pure function of these, so a corrected metric needs no new run, and a
# killed run resumes from the last shard.


class Predictions:
    """The predictions of one cell, in `folder`/`key`. A record is one sample: its `id` (string or
    integer), its `prediction`, and other values for its metric, as JSON."""

    def __init__(self, folder: str | Path, key: str) -> None:
        if not key or "/" in key or key.startswith("."):
            raise ValueError(f"a key of predictions is a plain name, got '{key}'")
        self.folder = Path(folder) / key
        self.warnings: list[str] = []

    def append(self, records: Iterable[Mapping[str, Any]]) -> Path | None:
        """Store records as one new shard and return its path; None when there are none.

        Raises ValueError for a record without an id or not of JSON, StoreError when the folder
        can't be written; earlier shards are untouched.
        """
        lines = []
        for record in records:
            if not isinstance(record.get("id"), (str, int)):
                raise ValueError(f"a prediction needs an id, got {dict(record)!r:.80}")
            lines.append(_line(record))
        if not lines:
            return None
        path = self.folder / unique_name("part", ".jsonl")
        write_whole(path, b"".join(lines))
        return path

    def done(self) -> dict[str | int, dict[str, Any]]:
        """Id → record over all shards; of two records of one sample, the later one.

        A line that isn't a record, as at the end of a torn file, is left out, and `warnings` names
        the first of each shard.
        """
        records = {}
        warnings: dict[Path, str] = {}
        for path in sorted(filter(Path.is_file, self.folder.glob("part-*.jsonl"))):
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                try:
                    record = json.loads(line)
                    if b"\\ud" in line.lower():  # perhaps a lone surrogate, which isn't valid text
                        _line(record)
                    record["prediction"]  # required in a record
                    records[record["id"]] = record
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    warnings.setdefault(path, f"{path} line {number} is no prediction: {reason}")
        self.warnings = list(warnings.values())
        return records

    def sha256(self, ids: Collection[str | int] | None = None) -> str:
        """Hash of ids and predictions, in the order of ids: the same answers give the same hash,
        independent of shards and of other recorded fields. `ids` leaves other samples out.
        """
        lines = sorted(
            _line({"id": key, "prediction": record.get("prediction")})
            for key, record in self.done().items()
            if ids is None or key in ids
        )
        return hashlib.sha256(b"".join(lines)).hexdigest()


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(record), sort_keys=True, ensure_ascii=False).encode() + b"\n"
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"a prediction is JSON in UTF-8: {error}") from error


def documents(rows: Iterable[Any]) -> list[str]:
    """Keys of the documents of rows: their text, or a row's id if it has no text."""
    return [row.document or row.id for row in rows]
