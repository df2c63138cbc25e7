"""Rows as a table, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


def show(rows: Iterable[Row]) -> None:
    """What a person looks for; `--format tsv` has more."""
    names = ("row", "UTC", "method", "task", "model", "tokens", "device", "status", "score",
             "latency", "", "memory")  # fmt: skip
    words = ("row", "UTC", "method", "task", "model", "device", "status", "")
    tables.draw("", names, map(_line, rows), words)


def _line(row: Row) -> tuple[str, ...]:
    status, verdict = row["status"], row["verdict"]
    return (
        row["row_id"][:8],
        (row["created_utc"] or "")[:16].replace("T", " "),
        row["method"] or "–",
        row["task"] or "–",
        row["model"] or "–",
        _number(row["length"], ",d"),
        row["device"] or "–",
        f"[{STATUS_STYLE.get(status, 'red')}]{status}[/]",
        _number(row["value"], ".1f"),
        f"×{row['ratio']:.3f}" if row["ratio"] is not None else "–",
        f"[{VERDICT_STYLE[verdict]}]{verdict}[/]" if verdict else "",
        f"×{row['mem_ratio']:.3f}" if row["mem_ratio"] is not None else "–",
    )


def _number(value: Any, style: str) -> str:
    return "–" if value is None else f"{value:{style}}"
