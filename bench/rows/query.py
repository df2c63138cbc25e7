"""Selects rows by id, by folder, or by filters such as 'method=vcc,length=4096'."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from bench.errors import RequestError, unknown
from bench.request import plugins
from bench.request.schema import BASELINE
from bench.rows.columns import COLUMNS, SCHEMA_VERSION, Column, Row, value_of
from bench.rows.shards import column_named, schema_version, write_whole
from bench.rows.store import LIGHT, PREDICTIONS, Store
from bench.status import Status

AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])
"""A Row, or a row with additional columns."""

ALIASES = {"n": "n_samples_planned", "data": "data_source", "weights": "weights_kind",
           "budget": "method.budget"}  # fmt: skip
"""Names of a request whose column, or method's parameter, has a longer name."""
PREFIXES = ("row_id", "cell_key")
"""Columns that match by their first letters, in addition to every …sha256."""
MOST_NAMED = 200
"""An error lists at most this number of a column's values."""


@dataclass(frozen=True)
class Selection:
    """The rows that one argument selects, and a line for each file that couldn't be read.
    `named` is the filter's values by column; `one` is true when the argument was a row's id."""

    text: str
    folder: Path
    rows: list[Row]
    warnings: list[str]
    named: Mapping[str, list[str]] = field(default_factory=dict)
    one: bool = False


def sides(texts: Iterable[str], results: Path, words: Sequence[str] = ()) -> list[Selection]:
    """The rows that arguments of `bench compare` select: a folder (or file) of rows, a filter over
    `results`, or a row's id, also as FOLDER/ID; `words` filter each. A folder is read once. Raises
    RequestError for an argument without rows."""
    read = functools.cache(_read)
    selections = []
    for text in texts:
        path = Path(text).expanduser()
        one = not path.exists() and "=" not in text
        folder, chosen = (path, []) if path.exists() else (results, [text])
        if one and path.parent.name and path.parent.is_dir():
            folder, chosen = path.parent, [path.name]
        meant = _meant(text) if one else ""
        known = folder.exists() or not meant
        rows, warnings = select([*chosen, *words], folder, read=read) if known else ([], [])
        if one and len(ids := {row["row_id"] for row in rows}) > 1:
            some = ", ".join(sorted(ids)[:4])
            raise RequestError(
                f"'{chosen[0]}' begins the ids of {len(ids)} rows: {some}; give more"
            )
        if one and not rows:
            raise RequestError(
                f"'{text}' is no folder, filter or row's id. Did you mean {meant}?"
                if meant
                else f"'{text}' is no folder, no filter such as method=vcc,length=4096, and begins "
                f"no row's id in {folder}; bench results lists rows"
            )
        if not rows:
            raise RequestError(f"no row in {folder} fits '{text}'; bench results lists rows")
        selected = Selection(text, folder, rows, warnings, {} if one else named(chosen), one)
        selections.append(selected)
    return selections


def _meant(text: str) -> str:
    """The filter by the method or task that a text nearly names; empty if it names none."""
    groups = {name: group for group in ("task", "method") for name in plugins.available(group)}
    near = difflib.get_close_matches(text, groups, n=1, cutoff=0.7)
    return f"{groups[near[0]]}={near[0]}" if near else ""


def _read(folder: Path, columns: Sequence[str]) -> tuple[list[Row], list[str]]:
    if not folder.exists():
        raise RequestError(f"no folder {folder}; rows are made by bench run")
    store = Store(folder)
    return oldest_first(store.rows(columns).to_pylist()), store.warnings


def select(
    words: Iterable[str], folder: Path, columns: Sequence[str] = LIGHT, read: Any = _read
) -> tuple[list[Row], list[str]]:
    """Rows of a folder that fit the words, oldest first, and a line for each file set aside.

    A word is NAME=VALUE or NAME=VALUE,VALUE (a column, or method.PARAMETER), or the first letters
    of a row's id. Raises RequestError for a folder that isn't there, an unknown name, and a value
    that no row has.
    """
    stored, warnings = read(folder, tuple(columns))
    rows = stored
    for name, values in named(words).items():
        fits = _test(name, values)
        rows = [row for row in rows if fits(row)]
        if stored and not rows and name in COLUMNS and name not in PREFIXES:
            present = {str(value_of(row, name)) for row in stored}
            if len(present) <= MOST_NAMED and not any(map(fits, stored)):
                if (name, values) == ("method", [BASELINE]):
                    raise RequestError(
                        f"no row of {BASELINE} in {folder}: bench run method={BASELINE} adds one; "
                        "bench results lists the others' comparisons with it"
                    )
                raise unknown(f"{name} in {folder}", ",".join(values), present)
    return rows, warnings


def named(words: Iterable[str]) -> dict[str, list[str]]:
    """Column → accepted values, from words such as 'method=vcc,length=1024,4096'."""
    accepted: dict[str, list[str]] = {}
    for word in words:
        name = "row_id"
        for part in word.split(","):
            left, equals, value = part.partition("=")
            if equals:
                name = ALIASES.get(left.strip(), left.strip())
                _check(name)
            accepted.setdefault(name, []).append((value if equals else left).strip())
    return accepted


def _check(name: str) -> None:
    if name.startswith("method."):
        return
    try:
        column = column_named(name)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if column.type.startswith("list") or column.type == "json":
        hint = "; a method's parameter is method.NAME=VALUE" if name == "method_params" else ""
        raise RequestError(f"rows can't be chosen by '{name}': it holds {column.type}{hint}")


def _test(name: str, values: Sequence[str]) -> Callable[[Row], bool]:
    if name.startswith("method."):
        return lambda row: _parameter(row, name.partition(".")[2]) in values
    if name in PREFIXES or name.endswith("sha256"):
        return lambda row: (value_of(row, name) or "").startswith(tuple(values))
    wanted = [_value(COLUMNS[name], value) for value in values]
    return lambda row: value_of(row, name) in wanted


def _parameter(row: Row, name: str) -> str | None:
    parameters = json.loads(row["method_params"] or "{}")
    if name not in parameters:
        return None
    value = parameters[name]
    return value if isinstance(value, str) else json.dumps(value)


def _value(column: Column, text: str) -> Any:
    if text == "null":
        return None
    if column.values and text not in column.values:
        raise unknown(column.name, text, column.values)
    accepted: dict[str, Callable[[str], Any]] = {
        "int64": int,
        "float64": float,
        "bool": {"true": True, "false": False}.__getitem__,
    }
    try:
        return accepted.get(column.type, str)(text)
    except (ValueError, KeyError) as error:
        raise RequestError(f"{column.name}={text}: this column holds {column.type}") from error


def oldest_first(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """Rows by the time at which they were stored. The attempts of a cell on a host keep their
    order even if its clock was wrong: each counts as at least as new as the attempts before it."""
    newest: dict[tuple[Any, Any], str] = {}
    timed: list[tuple[str, AnyRow]] = []
    for row in sorted(rows, key=lambda row: (row.get("attempt") or 1, row["created_utc"] or "")):
        cell = row["cell_key"], row.get("host_id")
        newest[cell] = max(newest.get(cell, ""), row["created_utc"] or "")
        timed.append((newest[cell], row))
    return [row for _, row in sorted(timed, key=lambda each: each[0])]


def best(rows: Iterable[AnyRow]) -> AnyRow:
    """The row that counts among several of one cell: ok rows before others, then the newest."""
    newest_first = oldest_first(rows)[::-1]
    return max(newest_first, key=lambda row: row["status"] == Status.OK)


def counting(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """The row that counts for each cell on each host."""
    cells: dict[tuple[Any, Any], list[AnyRow]] = {}
    for row in rows:
        cells.setdefault((row["cell_key"], row.get("host_id")), []).append(row)
    return [best(group) for group in cells.values()]


# Scores over seeds: the mean and the spread of rows that differ only in their seed.

SAME = (
    "method", "method_params", "task", "split", "data_source", "model", "weights_kind", "length",
    "batch", "dtype", "device", "threads", "n_samples_planned", "measure", "metric", "question",
    "turns", "prompt", "weights_format", "method_version", "task_version", "metric_version",
    "recipe", "recipe_params",
)  # fmt: skip
"""Columns that are equal for several seeds. A seed draws rows, weights and their training."""
OVER_SEEDS = (*SAME, "seeds", "mean", "sd", "lowest", "highest", "seeds_at_chance")


def over_seeds(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A record with OVER_SEEDS for each score, from the newest row of each seed. `sd` is the
    standard deviation of one seed's score; None if there is only one seed."""
    records = []
    for key, scored in by_seed(rows, "value").items():
        scores = [row["value"] or 0.0 for row in scored.values()]
        spread = {
            "seeds": " ".join(map(str, sorted(scored))),
            "mean": fmean(scores),
            "sd": stdev(scores) if len(scores) > 1 else None,
            "lowest": min(scores),
            "highest": max(scores),
            "seeds_at_chance": sum(bool(row["at_chance"]) for row in scored.values()),
        }
        records.append(dict(zip(SAME, key, strict=True)) | spread)
    return records


def by_seed(rows: Iterable[AnyRow], name: str) -> dict[tuple[Any, ...], dict[int, AnyRow]]:
    """SAME → seed → the newest row that has a value in the column."""
    groups: dict[tuple[Any, ...], dict[int, AnyRow]] = {}
    for row in counting(rows):
        if row["status"] == Status.OK and row.get(name) is not None:
            key = tuple(row.get(column) for column in SAME)
            groups.setdefault(key, {})[row["seed"]] = row
    return groups


def versions(folder: Path) -> dict[int, tuple[int, int]]:
    """Schema version → (files, rows), for complete files of this project."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: dict[int, tuple[int, int]] = {}
    for path in Store(folder).shards():
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError, ValueError):
            continue
        version = schema_version(metadata.metadata)
        if version is not None and version <= SCHEMA_VERSION:
            files, rows = counts.get(version, (0, 0))
            counts[version] = (files + 1, rows + metadata.num_rows)
    return dict(sorted(counts.items()))


def copy_predictions(source: Path, target: Path) -> int:
    """Copy the shards of predictions that `target` lacks, and return their number. Rows can be
    merged without predictions, but these are needed to pair samples and to score them again."""
    copied = 0
    for path in sorted((source / PREDICTIONS).glob("*/part-*.jsonl")):
        into = target / PREDICTIONS / path.parent.name / path.name
        if not into.exists():
            write_whole(into, path.read_bytes())
            copied += 1
    return copied
