"""The targets that rows can be exported to, each a function of a module that is imported when it is
asked for; CSV and JSON lines are here.

A function takes the rows, where to write and the folder that they were read from, and returns a
line that names the files it wrote. Raises RequestError.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import RequestError, unknown
from bench.files import check_own, write_own
from bench.rows.columns import COLUMNS, Row, value_of

Writer = Callable[[list[Row], Path, Path], str]


class Target(NamedTuple):
    """`writer` is its function, `into` what it writes, `about` what is in it."""

    writer: str
    into: str
    about: str


TARGETS = {
    "csv": Target("bench.adapters.export:write_csv", "FILE", "a spreadsheet's lines; no lists"),
    "jsonl": Target("bench.adapters.export:write_jsonl", "FILE", "every column, as JSON lines"),
    "every_eval_ever": Target(
        "bench.adapters.scores:write_every_eval_ever", "DIR", "a record for each cell, schema 0.3.0"
    ),
    "hf-eval-results": Target(
        "bench.adapters.scores:write_eval_results", "DIR",
        ".eval_results/*.yaml of models of the hub",
    ),
    "mlflow": Target("bench.adapters.trackers:write_mlflow", "DIR", "runs in DIR/mlflow.db"),
    "wandb": Target("bench.adapters.trackers:write_wandb", "DIR", "offline runs, for wandb sync"),
}  # fmt: skip


def export(name: str, rows: list[Row], into: Path, results: Path) -> str:
    """Writes the rows to a target, in a file or folder that is new, empty or from an earlier
    export. Raises RequestError, also for an unknown name."""
    from bench.request import plugins

    chosen = target(name)
    writer: Writer = plugins.load(chosen.writer)
    check_own(into)
    try:
        return writer(rows, into, results)
    except OSError as error:
        raise RequestError(f"--into {into}: {error}") from error


def target(name: str) -> Target:
    """Raises RequestError with the nearest name."""
    if name not in TARGETS:
        raise unknown("target of export", name, TARGETS)
    return TARGETS[name]


# Rows as CSV for spreadsheets and as JSON lines for programs.


def write_csv(rows: Sequence[Row], into: Path, results: Path) -> str:
    """A line of names and a line for each row, without the columns that hold lists. Text that a
    spreadsheet would run as a formula begins with an apostrophe; numbers stay numbers."""
    from bench.rows.store import LIGHT

    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(LIGHT)
    writer.writerows([_csv_value(value_of(row, name)) for name in LIGHT] for row in rows)
    write_own(into, buffer.getvalue().encode())
    return f"{into}: {len(rows)} rows"


def write_jsonl(rows: Sequence[Row], into: Path, results: Path) -> str:
    """An object for each row, with every column: JSON columns as objects, and null for what wasn't
    measured or is no finite number, which JSON hasn't."""
    lines = []
    for row in rows:
        values = {name: value_of(row, name) for name in COLUMNS}
        for name, value in values.items():
            is_json = COLUMNS[name].type == "json" and value is not None
            values[name] = finite(json.loads(value) if is_json else value)
        lines.append(json.dumps(values, ensure_ascii=False))
    write_own(into, "".join(f"{line}\n" for line in lines).encode())
    return f"{into}: {len(lines)} rows"


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and (value.lstrip()[:1] in {*"=+-@"} or value[:1] in {*"\t\r\n"}):
        return f"'{value}"
    return value


def finite(value: Any) -> Any:
    """The value with None in place of NaN and the infinities, inside lists and objects too."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list) else value
