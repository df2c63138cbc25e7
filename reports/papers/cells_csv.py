"""Cells of tables as CSV, one a line, for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from reports.papers.bench_commands import cell_commands
from reports.papers.table import PaperCell, PaperTable
from reports.rendering import csv_text

COLUMNS = (
    "table", "part", "method", "model_size", "length", "settings", "task", "split", "metric",
    "unit", "published", "published_text", "approximate", "published_ratio", "measured",
    "measured_lo", "measured_hi", "measured_is_ratio", "comparison", "at_chance", "n", "delta",
    "verdict", "reason", "objections", "row_id", "host_id", "published_hardware", "source", "flag",
    "command",
)  # fmt: skip


def cells_csv(tables: Iterable[PaperTable]) -> str:
    """The cells of all tables under one header."""
    return csv_text(COLUMNS, (record for table in tables for record in _records(table)))


def _records(table: PaperTable) -> Iterator[dict[str, Any]]:
    commands = cell_commands(table)
    for cell in table.cells:
        yield _record(table, cell, commands.get(id(cell), ""))


def _record(table: PaperTable, cell: PaperCell, command: str) -> dict[str, Any]:
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
        "comparison": cell.comparison,
        "at_chance": cell.at_chance if measured else None, "n": measured and measured.n,
        "delta": cell.judgement.delta, "verdict": cell.verdict,
        "reason": cell.reason,
        "objections": "; ".join(cell.objections), "row_id": row.get("row_id"),
        "host_id": row.get("host_id"), "published_hardware": printed.hardware,
        "source": printed.source, "flag": printed.extra.get("flag"), "command": command,
    }  # fmt: skip
