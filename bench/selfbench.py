"""What the harness itself costs: `make selfbench`. Prints figures beside their goals; no test.

Processor seconds stand beside the clock's: on a busy machine only they are the harness's own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.plugins import ROOT
from bench.store import Store

ROWS, SHARD = 100_000, 5_000
CELL = ["method=vanilla", "length=160", "n=1"]

BENCH = """
import sys
from bench.cli import main
try:
    main(sys.argv[1:])
finally:
    mark = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(mark.split()[1], file=sys.stderr)
"""
"""Runs a command and ends with its own high-water mark in KiB, its children's left out."""

RANK = """
import sys
from bench.store import Store
rows = Store(sys.argv[1]).rows(["task", "method", "value", "ratio", "mem_ratio"], {"status": "ok"})
order = rows.sort_by([("task", "ascending"), ("value", "descending"), ("ratio", "ascending")])
print(order.num_rows, order.group_by(["task", "method"]).aggregate([("value", "max")]).num_rows)
print(0, file=sys.stderr)
"""


def main(model: str = "embedded") -> None:
    with tempfile.TemporaryDirectory() as folder:
        cell = bench("run", f"model={model}", f"results={folder}/runs", *CELL)
        tell("a cell whose work is nothing", spent(cell), 6, 80)
        tell("the same cell, already done", spent(cell), None, 80)
        tell("the same, quality alone", spent([*cell, "measure=quality"]), 6, 80)
        tell("bench ls", spent(bench("ls")), 0.3, None)
        fill(Path(folder, "many"))
        ranking = [sys.executable, "-c", RANK, f"{folder}/many"]
        tell(f"reading and ranking {ROWS:,} rows", spent(ranking), 5, None)


def bench(*words: str) -> list[str]:
    return [sys.executable, "-c", BENCH, *words]


def spent(command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds by the clock, seconds of processor (children included), and peak in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    clock_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        sys.exit(run.stderr)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return clock_s, processor_s, int(run.stderr.split()[-1]) / 1024


def fill(folder: Path) -> None:
    """A folder of as many rows as years of use would bring."""
    store = Store(folder)
    for start in range(0, ROWS, SHARD):
        store.append(
            {
                "cell_key": f"{i:064x}",
                "cell": json.dumps({"length": i}),
                "status": "ok",
                "method": f"method-{i % 40}",
                "task": f"task-{i % 25}",
                "value": i * 7919 % 10_007 / 100,
                "ratio": 1 + i % 13 / 10,
                "mem_ratio": 1 + i % 7 / 10,
                "lat_samples_ns": [i] * 40,
                "base_samples_ns": [i] * 40,
            }
            for i in range(start, start + SHARD)
        )


def tell(
    what: str, figures: tuple[float, float, float], goal_s: float | None, goal_mib: float | None
) -> None:
    clock_s, processor_s, mib = figures
    line = f"{what:<34} {clock_s:6.2f} s{aim(clock_s, goal_s)}, {processor_s:.2f} s of processor"
    if mib:
        line += f", peak {mib:.0f} MiB{aim(mib, goal_mib)}"
    print(line, flush=True)


def aim(figure: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return f" (goal {goal:g}{'' if figure <= goal else ', MISSED'})"


if __name__ == "__main__":
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    main(*sys.argv[1:])
