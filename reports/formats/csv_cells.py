"""A table's cells as CSV, one a line, for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from reports.build import Cell, Table
from reports.commands import cell_commands
from reports.elements import plain

COLUMNS = (
    "table", "part", "method", "model_size", "length", "settings", "task", "split", "metric",
    "unit", "published", "published_text", "approximate", "published_ratio", "measured",
    "measured_lo", "measured_hi", "measured_is_ratio", "at_chance", "n", "delta", "verdict",
    "reason", "objections", "row_id", "host_id", "published_hardware", "source", "flag", "command",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@")
"""A spreadsheet runs a text that begins so."""


def write(tables: Iterable[Table]) -> str:
    """The cells of the tables under one line of names."""
    into = io.StringIO()
    writer = csv.DictWriter(into, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        commands = cell_commands(table)
        for cell in table.cells:
            record = _record(table, cell, commands.get(id(cell), ""))
            writer.writerow({name: field(value) for name, value in record.items()})
    return into.getvalue()


def _record(table: Table, cell: Cell, command: str) -> dict[str, Any]:
    printed, measured, row = cell.printed, cell.measured, cell.row or {}
    return {
        "table": table.definition.name, "part": cell.line.part, "method": printed.method,
        "model_size": cell.line.size, "length": printed.length,
        "settings": json.dumps(dict(cell.line.settings)) if cell.line.settings else "",
        "task": printed.task, "split": printed.split, "metric": printed.metric,
        "unit": printed.unit, "published": printed.value, "published_text": printed.text,
        "approximate": printed.approximate, "published_ratio": cell.ratio,
        "measured": measured and measured.value, "measured_lo": measured and measured.lo,
        "measured_hi": measured and measured.hi,
        "measured_is_ratio": cell.is_ratio if measured else None,
        "at_chance": cell.at_chance if measured else None, "n": measured and measured.n,
        "delta": cell.judged.delta, "verdict": cell.judged.verdict, "reason": cell.judged.reason,
        "objections": "; ".join(cell.objections), "row_id": row.get("row_id"),
        "host_id": row.get("host_id"), "published_hardware": printed.hardware,
        "source": printed.source, "flag": printed.extra.get("flag"), "command": command,
    }  # fmt: skip


def field(value: Any) -> Any:
    """Numbers as they are; a text on one line that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(FORMULA) and not _number(text) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
