"""Reads the rows of parquet files, and reports the location of a value that can't be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.base import DataError
from tasks.loading.sources import first_line


def read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(location, record) for each row."""
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names: Sequence[str] = file.schema_arrow.names
            check_names(names, str(path))
            for batch in file.iter_batches(batch_size=64):
                columns = [
                    _values(column, name, path, number)
                    for name, column in zip(names, batch.columns, strict=True)
                ]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield f"{path} row {number}", dict(zip(names, values, strict=True))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the name of a column is not UTF-8: {error.object!r}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a whole parquet file after row {number}: {first_line(error)}"
        ) from None


def _values(column: Any, name: str, path: Path, before: int) -> list[Any]:
    """The values of a column; the first is in the row after `before`."""
    values = []
    for number, value in enumerate(column, start=before + 1):
        try:
            values.append(value.as_py())
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{path} row {number}: column {name!r} can't be read: {first_line(error)}"
            ) from None
    return values


def check_names(names: Sequence[str], where: str) -> None:
    """Raises DataError if a name occurs twice among a table's columns."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DataError(f"{where}: column {name!r} comes twice; expected each name once")
