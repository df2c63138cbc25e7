"""From a cell to its row: ask the store, run the children, judge what they brought, store it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import host, place, plugins, processes, trained
from bench.aside import aside
from bench.cell import BASELINE, Cell
from bench.columns import SCHEMA_VERSION
from bench.errors import RequestError
from bench.store import Store
from bench.supervisor import Outcome, Progress, supervise

FINISHED = ("ok", "unsupported", "oom_host", "oom_device", "timeout")
"""A cell with such a row isn't run again: how it ended is a result."""

SPARE_BYTES = 512 << 20
MEMORY_LIMIT = "BENCH_MEMORY_LIMIT_BYTES"
"""Environment variable: a child may take so much and no more. It's no part of a cell."""
MAX_PROBED = 1 << 22
PROTOCOL = "1"
Row = dict[str, Any]


def run(
    cell: Cell,
    results: Path | str = "results/runs",
    *,
    force: bool = False,
    deadline_s: float = 3600.0,
    progress: Progress | None = None,
    command: str | None = None,
) -> Row:
    """Run one cell and store its row; a finished cell's row is returned as it is.

    However a child ends there is a row: its `status` says how. Raises RequestError for what the
    user must mend, StoreError when the row can't be written, Cut when the cell's job is ended.
    """
    results = Path(results).expanduser().resolve()
    store = Store(results)
    found = aside(lambda: store.find(cell.key))
    if not force and found and found["status"] in FINISHED:
        return {**found, "reused": True}
    writable(results)
    began = time.monotonic_ns()
    since = host.counters()
    others = place.beside()
    untrained, cell = trained.weights(cell, _child, progress)
    row = _identity(cell, command)
    row["attempt"] += found["attempt"] or 1 if found else 0
    stages = (_probe,) if cell.probe else (_quality, _latency, _memory, _training)
    for stage in stages:
        outcome, columns = (
            (untrained, {}) if untrained else stage(cell, results, deadline_s, progress)
        )
        if outcome is None:
            continue
        if outcome.status == "request":
            raise RequestError(outcome.detail or "")
        place.check_cut(outcome.exit_signal)
        row |= columns
        if outcome.status != "ok":
            row |= {
                "status": outcome.status,
                "status_stage": outcome.stage,
                "status_detail": outcome.detail,
                "exit_signal": outcome.exit_signal,
            }
            break
    row = host.fingerprint(cell.threads, cell.device["kind"], since) | row
    row |= _company(cell, row, others | place.beside())
    row["wall_total_ns"] = time.monotonic_ns() - began

    def stored() -> Row:
        from bench import judge

        judged = judge.judged(row, cell, results)
        store.append([judged])
        return judged

    return {**aside(stored), "reused": False}


def writable(results: Path) -> None:
    """Raises RequestError; to find out after an hour that rows can't be stored is too late."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe = results / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(results, error) from error


def unwritable(results: Path, error: OSError) -> RequestError:
    return RequestError(
        f"results={results} can't be written: {error.strerror}; give another folder"
    )


def lost(cell: Cell, results: Path, status: str, detail: str, **columns: Any) -> Row:
    """Store the row of a cell whose whole process was ended from outside, supervisor and all."""
    row = ended(cell, status, detail, **{"status_stage": "start", **columns})
    Store(results).append([row])
    return row


def ended(cell: Cell, status: str, detail: str, **columns: Any) -> Row:
    """The row of a cell of which nothing was measured."""
    return _identity(cell, None) | columns | {"status": status, "status_detail": detail}


def _company(cell: Cell, row: Row, others: set[str]) -> Row:
    """What ran beside the cell; what is timed in company is marked noisy."""
    columns: Row = {"ran_beside": ", ".join(sorted(others)) or "nothing known"}
    if others and cell.plan.speed:
        reasons = [row.get("noise_reason"), f"beside {columns['ran_beside']}"]
        columns |= {"noisy": True, "noise_reason": "; ".join(filter(None, reasons))}
    return columns


def _identity(cell: Cell, command: str | None) -> Row:
    return {
        "schema_version": SCHEMA_VERSION,
        "row_id": uuid.uuid4().hex,
        "run_id": os.environ.setdefault(place.RUN_ID, uuid.uuid4().hex[:12]),
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol": PROTOCOL,
        "cell_key": cell.key,
        "cell": cell.told(),
        "command": command,
        "method_version": plugins.code_sha256([cell.method["target"]])[:12],
        "task_version": str(cell.task["version"]),
        **cell.columns,
        **trained.identity(cell),
        "truncation_side": cell.task.get("truncation_side", "right"),
        "status": "ok",
        **place.columns(),
    }


def _child(
    module: str,
    request: Mapping[str, Any],
    cell: Cell,
    deadline_s: float,
    progress: Progress | None,
) -> Outcome:
    threads = {"OMP_NUM_THREADS": str(cell.threads), "OMP_PROC_BIND": "close"}
    # A GPU's driver maps far more than it uses, so there the limit would hit the wrong thing.
    spare = max(0, (host.available_memory() or 0) - SPARE_BYTES)
    if limit := os.environ.get(MEMORY_LIMIT):
        spare = min(spare, int(limit))
    if granted := place.memory_limit():
        # Slurm kills the whole job for memory: the child has to meet its own limit before.
        spare = min(spare, max(SPARE_BYTES, granted - SPARE_BYTES))
    return supervise(
        f"bench.children.{module}",
        {"cell": cell.to_json(), **request},
        deadline_s=deadline_s,
        memory_bytes=spare if cell.device["kind"] == "cpu" else None,
        environment={**threads, **SETTINGS},
        progress=progress,
        preloaded=cell.device["kind"] == "cpu",
    )


SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}


def _quality(
    cell: Cell, results: Path, deadline_s: float, progress: Progress | None
) -> tuple[Outcome | None, Row]:
    if not cell.plan.quality or cell.model["weights"] == "random":
        return None, {}
    paired = cell.method["name"] != BASELINE
    request = {"results": str(results), "baseline": paired}
    outcome = _child("quality", request, cell, deadline_s, progress)
    return outcome, outcome.result


def _latency(
    cell: Cell, results: Path, deadline_s: float, progress: Progress | None
) -> tuple[Outcome | None, Row]:
    if not cell.plan.speed:
        return None, {}

    def child(request: Mapping[str, Any], told: Progress | None) -> Outcome:
        return _child("latency", request, cell, deadline_s, told)

    outcome = processes.shared(child, progress)
    return outcome, outcome.result


def _memory(
    cell: Cell, results: Path, deadline_s: float, progress: Progress | None
) -> tuple[Outcome | None, Row]:
    if not cell.plan.speed:
        return None, {}
    mine = _child("memory", {"arm": "method"}, cell, deadline_s, progress)
    if mine.status != "ok":
        return mine, {}
    columns = dict(mine.result)
    if cell.method["name"] == BASELINE:
        return mine, columns
    base = _child("memory", {"arm": BASELINE}, cell, deadline_s, progress)
    if base.status != "ok":
        reason = f"vanilla ended with {base.status}"
        return mine, {**columns, "mem_reason": reason, "baseline_status": base.status}
    for name in ("rss_base_bytes", "rss_peak_delta_bytes", "rss_peak_warm_delta_bytes",
                 "alloc_peak_bytes", "gpu_alloc_delta_bytes", "gpu_reserved_bytes",
                 "gpu_nvml_bytes"):  # fmt: skip
        columns[f"base_{name}"] = base.result.get(name)
    peak = "gpu_alloc_delta_bytes" if cell.device["kind"] == "cuda" else "rss_peak_delta_bytes"
    if columns.get(peak) is not None and base.result.get(peak):
        columns["mem_ratio"] = columns[peak] / base.result[peak]
    return mine, columns


def _probe(
    cell: Cell, results: Path, deadline_s: float, progress: Progress | None
) -> tuple[Outcome | None, Row]:
    """The longest input that one forward fits, to a sixteenth: doubled until it fails, then
    halved in."""

    def outcome_at(length: int) -> Outcome:
        def told(stage: str, done: int, total: int) -> None:
            if progress:
                progress(f"{length:,} tokens", done, total)

        return _child("probe", {"length": length}, cell, deadline_s, told)

    fits, fails = 0, None
    last = Outcome("error", "probe")
    length = cell.length
    while length <= MAX_PROBED:
        last = outcome_at(length)
        if last.status == "ok":
            fits = length
        elif last.status in ("oom_host", "oom_device", "timeout"):
            fails = length
        else:
            return last, {}
        if fails is None:
            length *= 2
        elif fails - fits > max(1, fits // 16):
            length = (fits + fails) // 2
        else:
            break
    if not fits:
        return last, {}
    return replace(last, status="ok"), {"max_length_fit": fits}


def train(cell: Cell, progress: Progress | None) -> Outcome:
    """Train the weights that a cell asks for, or go on with them; the result is their card."""
    return trained.one(cell, _child, progress)


def _training(
    cell: Cell, results: Path, deadline_s: float, progress: Progress | None
) -> tuple[Outcome | None, Row]:
    if not cell.plan.training:
        return None, {}
    return trained.step(cell, _child, deadline_s, progress)
