"""Rows as CSV for spreadsheets and as JSON lines for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.files import write_own
from bench.rows.columns import COLUMNS, Row, value_of
from bench.rows.store import LIGHT


def write_csv(rows: Iterable[Row], into: Path, results: Path) -> str:
    """A line of names and a line for each row, without the columns that hold lists. Text that a
    spreadsheet would run as a formula begins with an apostrophe; numbers stay numbers."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(LIGHT)
    count = 0
    for row in rows:
        writer.writerow([_cell(value_of(row, name)) for name in LIGHT])
        count += 1
    write_own(into, buffer.getvalue().encode())
    return f"{into}: {count} rows"


def write_jsonl(rows: Iterable[Row], into: Path, results: Path) -> str:
    """An object for each row, with every column: JSON columns as objects, and null for what wasn't
    measured or is no finite number, which JSON hasn't."""
    lines = [
        json.dumps({n: _value(n, value_of(row, n)) for n in COLUMNS}, ensure_ascii=False)
        for row in rows
    ]
    write_own(into, "".join(f"{line}\n" for line in lines).encode())
    return f"{into}: {len(lines)} rows"


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and (value.lstrip()[:1] in tuple("=+-@") or value[:1] in "\t\r\n"):
        return f"'{value}" if value else value
    return value


def _value(name: str, value: Any) -> Any:
    if COLUMNS[name].type == "json" and value is not None:
        return finite(json.loads(value))
    return finite(value)


def finite(value: Any) -> Any:
    """The value with None in place of NaN and the infinities, inside lists and objects too."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value
