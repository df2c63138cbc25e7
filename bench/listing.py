"""Rows as a table, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from bench import tables
from bench.rows import Row

COLUMNS = (
    "row_id", "created_utc", "status", "method", "method_params", "task", "model", "weights_kind",
    "data_source", "length", "batch", "device", "dtype", "threads", "seed", "measure", "metric",
    "metric_version", "value", "ci_lo", "ci_hi", "base_value", "lat_median_ns", "ratio",
    "ratio_ci_lo", "ratio_ci_hi", "verdict", "mem_ratio", "rss_peak_delta_bytes",
    "gpu_alloc_delta_bytes", "noisy", "host_id", "cell_key",
)  # fmt: skip
"""What a tab-separated listing has of a row."""

STATUS_STYLE = {"ok": "green", "unsupported": "yellow", "skipped": "yellow"}
VERDICT_STYLE = {"faster": "green", "slower": "red", "same": "cyan", "undecided": "yellow"}


def show(rows: Sequence[Row]) -> None:
    """What a person looks for, newest last. What is the same in several rows goes to the title;
    `--format tsv` has more."""
    shared = [
        name
        for name in ("task", "model", "device")
        if len(rows) > 1 and len({row[name] for row in rows}) == 1
    ]
    lines = [_line(row) for row in rows]
    names = [name for name in lines[0] if name not in shared]
    words = ("row", "UTC", "method", "task", "model", "device", "status", "")
    title = escape(" · ".join(str(rows[0][name]) for name in shared))
    tables.draw(title, names, ([line[name] for name in names] for line in lines), words)


def _line(row: Row) -> dict[str, str]:
    status, verdict = row["status"], row["verdict"]
    return {
        "row": row["row_id"][:8],
        "UTC": (row["created_utc"] or "")[:16].replace("T", " "),
        "method": escape(row["method"] or "–"),
        "task": escape(row["task"] or "–"),
        "model": escape(row["model"] or "–"),
        "tokens": _number(row["length"], ",d"),
        "device": row["device"] or "–",
        "status": f"[{STATUS_STYLE.get(status, 'red')}]{status}[/]",
        "score": _number(row["value"], ".1f"),
        "latency": f"×{row['ratio']:.3f}" if row["ratio"] is not None else "–",
        "": f"[{VERDICT_STYLE[verdict]}]{verdict}[/]" if verdict else "",
        "memory": f"×{row['mem_ratio']:.3f}" if row["mem_ratio"] is not None else "–",
    }


def _number(value: Any, style: str) -> str:
    return "–" if value is None else f"{value:{style}}"
