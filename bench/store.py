"""Rows in append-only parquet shards.

A shard is written under a temporary name, synced, and renamed, so that it is whole or absent
whatever kills its writer, and any number of processes may append to one folder. No row is ever
changed. Rows come in the order of their shards' names, which begin with the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.columns import COLUMNS, SCHEMA_VERSION, arrow_schema
from bench.predictions import Predictions
from bench.shards import (
    Problem,
    ShardError,
    StoreError,
    checked_row,
    column_named,
    may_hold,
    read_shard,
    write_shard,
)

__all__ = [
    "COLUMNS",
    "SCHEMA_VERSION",
    "Merged",
    "Predictions",
    "Problem",
    "Store",
    "StoreError",
    "check",
    "merge",
]

LIGHT = [name for name, column in COLUMNS.items() if not column.type.startswith("list")]
PREDICTIONS = "predictions"
"""A folder of this name holds no rows, and too many files to look through for each cell."""
LEFTOVER_S = 3600.0
"""A temporary file older than this has no writer any more."""


class _Place(NamedTuple):
    """Where a row lies; the greatest of a cell is the one to use."""

    ok: bool
    created_utc: str
    path: Path
    row: int


class Store:
    """The rows of a folder and its subfolders, or of one parquet file.

    Reading never fails for one bad file: it is set aside and named in `warnings`, which tells of
    the last read. Each reading sees what other processes have appended meanwhile.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.problems: list[Problem] = []
        self._places: dict[str, list[_Place]] = {}
        self._indexed: set[Path] = set()

    @property
    def warnings(self) -> list[str]:
        """One line for each file that the last read set aside."""
        return [str(problem) for problem in self.problems]

    def append(self, rows: Iterable[Mapping[str, Any]]) -> Path | None:
        """Store `rows` as one new shard and give its path; None when there are no rows.

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

        `columns` are the ones to read, in order (default: all). `where` maps a column to the value
        it must have, or to a list of values of which it must have one; None means null.
        Raises ValueError for an unknown column.
        """
        import pyarrow as pa

        names = list(COLUMNS if columns is None else columns)
        where = where or {}
        wanted = list(dict.fromkeys([*names, *where, "row_id"]))
        for name in wanted:
            column_named(name)
        tables = [_matching(table, where) for _, table in self._read(self.shards(), wanted)]
        empty = arrow_schema().empty_table().select(wanted)
        return _distinct(pa.concat_tables([empty, *tables])).select(names)

    def find(self, cell_key: str) -> dict[str, Any] | None:
        """The newest row of a cell, an ok one before any other, without its lists of samples."""
        self._update_index(cell_key)
        for place in sorted(self._places.get(cell_key, ()), reverse=True):
            try:
                found: dict[str, Any] = read_shard(place.path, LIGHT, place.row).to_pylist()[0]
                return found
            except ShardError as error:
                self.problems.append(error.problem)
        return None

    def shards(self) -> list[Path]:
        """The parquet files, oldest first; names that begin with a dot are passed over."""
        if self.folder.is_file():
            return [self.folder]
        found = []
        for folder, inner, files in os.walk(self.folder):
            inner[:] = [name for name in inner if name[0] != "." and name != PREDICTIONS]
            found += [Path(folder, f) for f in files if f[0] != "." and f.endswith(".parquet")]
        return sorted(found, key=lambda path: (path.name, path))

    def _read(self, paths: Iterable[Path], names: list[str]) -> Iterator[tuple[Path, Any]]:
        self.problems = []
        for path in paths:
            try:
                yield path, read_shard(path, names)
            except ShardError as error:
                self.problems.append(error.problem)

    def _update_index(self, cell_key: str) -> None:
        """Look only into shards that are new and may hold the cell: a sweep asks once per cell, and
        a shard never changes."""
        paths = self.shards()
        if not self._indexed <= set(paths):
            self._places, self._indexed = {}, set()
        new = [p for p in paths if p not in self._indexed and may_hold(p, cell_key)]
        for path, table in self._read(new, ["cell_key", "status", "created_utc"]):
            self._indexed.add(path)
            values = (column.to_pylist() for column in table.columns)
            for row, (key, status, created) in enumerate(zip(*values, strict=True)):
                place = _Place(status == "ok", created or "", path, row)
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
    import numpy as np

    codes = table["row_id"].combine_chunks().dictionary_encode().indices
    first = np.unique(codes.to_numpy(zero_copy_only=False), return_index=True)[1]
    return table if len(first) == table.num_rows else table.take(np.sort(first))


class Merged(NamedTuple):
    """How many rows a merge added, how many were already there, and which files it set aside."""

    added: int
    known: int
    warnings: list[str]


def merge(sources: Iterable[str | Path], target: str | Path) -> Merged:
    """Copy the rows of folders or files into `target`: one shard a source, each row id once.

    Sources are left as they are, and merging twice adds nothing. Merging a folder of many small
    shards into a new one gives the same rows in one, which reads much faster.
    Raises StoreError when a source doesn't exist or the target can't be written.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    into = Store(target)
    known = into.rows(["row_id"])["row_id"]
    warnings = into.warnings
    added = seen = 0
    for source in sources:
        if not Path(source).exists():
            raise StoreError(f"cannot merge {source}: it does not exist")
        store = Store(source)
        rows = store.rows()
        new = rows.filter(pc.invert(pc.is_in(rows["row_id"], value_set=known)))
        if new.num_rows:
            write_shard(into.folder, new)
        warnings += store.warnings
        added, seen = added + new.num_rows, seen + rows.num_rows - new.num_rows
        known = pa.chunked_array([*known.chunks, *new["row_id"].chunks], pa.string())
    return Merged(added, seen, warnings)


def check(folder: str | Path, repair: bool = False) -> list[Problem]:
    """Read every value of every shard and tell what is wrong; an empty list is a sound folder.

    `repair` renames torn shards to `*.torn` and removes what killed writers left behind. Files of
    others and of newer versions are never touched, and duplicate rows are harmless.
    Raises StoreError when a repair is refused.
    """
    store = Store(folder)
    seen: set[str] = set()
    duplicates = []
    for path, table in store._read(store.shards(), list(COLUMNS)):
        ids = set(table["row_id"].to_pylist())
        if again := len(ids & seen) + table.num_rows - len(ids):
            duplicates.append(Problem(path, "duplicate", f"{again} rows are stored twice"))
        seen |= ids
    leftovers = [
        Problem(path, "leftover", "its writer was killed; no row depends on it")
        for path in store.folder.rglob(".*.tmp")
        if _age_s(path) > LEFTOVER_S
    ]
    problems = [*store.problems, *leftovers]
    for problem in problems if repair else ():
        _repair(problem)
    return [*problems, *duplicates]


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:  # its writer has finished meanwhile
        return 0.0


def _repair(problem: Problem) -> None:
    path = problem.path
    try:
        if problem.kind == "torn":
            path.rename(path.with_name(path.name + ".torn"))
        elif problem.kind == "leftover":
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot repair {path}: {error.strerror}") from error
