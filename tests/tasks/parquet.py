"""Parquet files of tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet


def write(path: Path, content: Mapping[str, Any] | list[Any]) -> Path:
    """Columns, or a list of rows."""
    is_rows = isinstance(content, list)
    table = pyarrow.Table.from_pylist(content) if is_rows else pyarrow.table(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
    return path
