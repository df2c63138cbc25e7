"""The summary of a folder of `make gpu`, as Markdown: its checks, measurements and devices."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.files import replacing
from bench.request import plugins
from bench.rows.columns import Row
from bench.rows.comparison import Comparison
from bench.rows.store import Store
from bench.status import Status
from benchmarks.gpu_pieces import CHECKS, ROWS, SUMMARY

READ = (
    "status", "status_detail", "method", "method_params", "task", "model", "length", "dtype",
    "device", "lat_median_ns", "lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi", "lat_verdict",
    "value", "tpot_median_ns",
    "tpot_ratio", "gpu_alloc_delta_bytes", "base_gpu_alloc_delta_bytes", "gpu_reserved_bytes",
    "gpu_nvml_bytes", "rss_peak_delta_bytes", "gpu_clock_mhz", "gpu_memory_clock_mhz",
    "gpu_throttle_reasons", "gpu_name", "gpu_driver", "cpu_model", "torch", "max_length_fit",
    "noise_reason", "created_utc",
)  # fmt: skip


def files(out: Path) -> list[str]:
    """The files from which the summary is made, to see whether there are new ones."""
    found = [path for path in (out / ROWS).glob("**/*.parquet")]
    lines = out / CHECKS
    return [*map(str, sorted(found)), str(lines.stat().st_size if lines.exists() else 0)]


def write(out: Path) -> None:
    """Replaces the summary as a whole, so that a killed run leaves a complete one."""
    rows = Store(out / ROWS).rows(list(READ)).to_pylist() if (out / ROWS).is_dir() else []
    with replacing(out / SUMMARY) as unfinished:
        unfinished.write_text(page(rows, checks(out)))


def checks(out: Path) -> list[dict[str, Any]]:
    """The conformance checks so far. The last line of a killed writer may be cut."""
    path, found = out / CHECKS, []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def page(rows: Sequence[Row], checked: Sequence[dict[str, Any]]) -> str:
    """The text of the summary."""
    devices = sorted({row["gpu_name"] or "" for row in rows if row["device"] != "cpu"})
    on_cpu = [row for row in rows if row["device"] == "cpu"]
    where = ", ".join(filter(None, devices)) or "no GPU"
    lines = [f"# make gpu: {where}", ""]
    if on_cpu or not rows:
        lines += ["Twins on a processor, at toy size: none of their figures is a GPU's.", ""]
    if rows:
        last = max(rows, key=lambda row: row["created_utc"])
        lines += [f"torch {last['torch']}, driver {last['gpu_driver'] or 'none'}, "
                  f"processor {last['cpu_model']}.", ""]  # fmt: skip
    return "\n".join([*lines, *_of_checks(checked), *_of_rows(rows)]) + "\n"


def _of_checks(checked: Sequence[dict[str, Any]]) -> list[str]:
    if not checked:
        return ["No conformance checks yet.", ""]
    lines = ["| conformance on | dtype | keep it | unsupported | fail |", "|---|---|---|---|---|"]
    kinds = sorted({(line["device"], line["family"], line["dtype"]) for line in checked})
    for device, family, dtype in kinds:
        of_kind = [c for c in checked if (c["device"], c["family"], c["dtype"]) ==
                   (device, family, dtype)]  # fmt: skip
        unsupported = sum(bool(c["unsupported"]) for c in of_kind)
        failed = sum(bool(c["failures"]) for c in of_kind)
        kept = len(of_kind) - unsupported - failed
        lines.append(f"| {family}, {device} | {dtype} | {kept} | {unsupported} | {failed} |")
    failures = [(c, failure) for c in checked for failure in c["failures"]]
    lines += ["", *(f"- {c['method']} in {c['family']}, {c['dtype']}: {_short(failure)}"
                    for c, failure in failures)]  # fmt: skip
    return [*lines, ""] if failures else lines


COLUMNS: dict[str, Callable[[Row], str]] = {
    "method": lambda row: plugins.method_label(row["method"], row["method_params"]) or "–",
    "model": lambda row: row["model"],
    "task": lambda row: row["task"],
    "tokens": lambda row: f"{row['length']:,}",
    "dtype": lambda row: row["dtype"],
    "score": lambda row: _number(row["value"], 1, ".1f"),
    "ms": lambda row: _number(Comparison.of(row, "lat").median_ns, 1e6, ",.2f"),
    "× vanilla": lambda row: _interval(row),
    "ms a token": lambda row: _number(Comparison.of(row, "tpot").median_ns, 1e6, ",.2f"),
    "× vanilla a token": lambda row: _number(Comparison.of(row, "tpot").ratio, 1, ".3f"),
    "allocated, MiB": lambda row: _number(
        row["gpu_alloc_delta_bytes"] or row["rss_peak_delta_bytes"], 1 << 20, ",.1f"
    ),
    "reserved, MiB": lambda row: _number(row["gpu_reserved_bytes"], 1 << 20, ",.0f"),
    "by the driver, MiB": lambda row: _number(row["gpu_nvml_bytes"], 1 << 20, ",.0f"),
    "MHz": lambda row: _number(row["gpu_clock_mhz"], 1, ",.0f"),
    "throttled": lambda row: row["gpu_throttle_reasons"] or "–",
    "longest input": lambda row: _number(row["max_length_fit"], 1, ",.0f"),
}


def _of_rows(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if row["status"] != Status.SKIPPED]
    counts = Counter(row["status"] for row in rows)
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common()) or "none"
    lines = ["", f"Cells: {told}." + (" Skipped: the time was over; the same command continues."
                                      if counts[Status.SKIPPED] else "")]  # fmt: skip
    for row in measured:
        if row["status"] == Status.ERROR:
            name = f"{COLUMNS['method'](row)} on {row['task']}, {row['length']:,} tokens"
            lines.append(f"- error: {name}: {_short(row['status_detail'] or '')}")
    shown = [[*(column(row) for column in COLUMNS.values()), row["status"]]
             for row in sorted(measured, key=_order)]  # fmt: skip
    names = [*COLUMNS, "status"]
    keep = [i for i in range(len(names)) if any(line[i] != "–" for line in shown)]
    return [*lines, "", *_table([names[i] for i in keep], ([x[i] for i in keep] for x in shown))]


def _order(row: Row) -> tuple[Any, ...]:
    return (row["model"], row["task"], row["dtype"], row["length"], row["method"],
            row["method_params"] or "")  # fmt: skip


def _table(names: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    if not names:
        return []
    rows = [names, ["---"] * len(names), *lines]
    return [f"| {' | '.join(row)} |" for row in rows]


def _interval(row: Row) -> str:
    latency = Comparison.of(row, "lat")
    if latency.ratio is None:
        return "–"
    text = f"{latency.ratio:.3f}"
    if latency.ratio_ci_lo is not None:
        text += f" ({latency.ratio_ci_lo:.3f} … {latency.ratio_ci_hi:.3f})"
    return f"{text} {latency.verdict or ''}".strip()


def _number(value: float | None, unit: float, form: str) -> str:
    return "–" if value is None else format(value / unit, form)


def _short(text: str) -> str:
    line = next(iter(text.splitlines()), "")
    return line if len(line) < 200 else f"{line[:200]} …"
