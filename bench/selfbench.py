"""What the harness itself costs: `make selfbench`. Prints figures beside their goals; no test.

Processor seconds stand beside the clock's: on a busy machine only they are the harness's own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.plugins import ROOT

ROWS = 100_000
CELL = ["method=vanilla", "length=64", "n=1", "measure=quality"]
RANK = """
import sys, time
from bench.store import Store
began = time.perf_counter()
rows = Store(sys.argv[1]).rows(["cell_key", "method", "value", "ratio", "mem_ratio", "status"])
best = rows.filter(rows["status"] == "ok") if False else rows.sort_by([("value", "descending")])
print(best.num_rows, time.perf_counter() - began)
"""


def main(model: str = "embedded") -> None:
    with tempfile.TemporaryDirectory() as folder:
        cell = [*bench("run", f"model={model}", f"results={folder}/runs"), *CELL]
        clock_s, processor_s, peak_mib = spent(cell)
        tell("a cell whose work is nothing, s", clock_s, 6, f"{processor_s:.1f} s of processor")
        clock_s, processor_s, peak_mib = spent(cell)
        tell("the same, already done, s", clock_s, None, f"{processor_s:.1f} s of processor")
        tell("peak of the supervisor, MiB", peak_mib, 80, "VmHWM, the cell known")
        clock_s, processor_s, _ = spent(bench("ls"))
        tell("bench ls, s", clock_s, 0.3, f"{processor_s:.2f} s of processor")
        fill(Path(folder, "many"))
        clock_s, processor_s, _ = spent([sys.executable, "-c", RANK, f"{folder}/many"])
        tell(f"reading and ranking {ROWS:,} rows, s", clock_s, 5, f"{processor_s:.1f} s of processor")


def bench(*words: str) -> list[str]:
    return [sys.executable, "-m", "bench", *words]


def spent(command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds by the clock and of processor, and the command's own peak in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert run.stderr is not None
    peak = 0
    while line := run.stderr.readline():  # a child speaks at each stage: a moment to look
        peak = max(peak, mark(run.pid))
        last = line
    if run.wait():
        sys.exit(f"{' '.join(command)} ended with {run.returncode}: {last.decode()}")
    clock_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return clock_s, processor_s, peak / (1 << 20)


def mark(pid: int) -> int:
    """VmHWM of a process, in bytes; 0 when it has gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def tell(what: str, figure: float, goal: float | None, beside: str) -> None:
    aim = "" if goal is None else f"goal {goal:g}{'' if figure <= goal else '  MISSED'}"
    print(f"{what:<44} {figure:8.2f}  {aim:<16} {beside}", flush=True)
