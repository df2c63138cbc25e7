"""The cost of the harness itself, each figure next to its goal: `make selfbench`.

    python -m benchmarks.harness [cell] [reports] [--model=NAME]

cell     one cell with next to no work, the same again when its row is stored, and `bench ls`
reports  reading and ranking 100,000 rows, and all tables of them in four formats (a minute)

CPU seconds (child processes included) are printed next to elapsed time: on a busy machine only they
belong to the harness.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.request.plugins import ROOT
from benchmarks.stored_rows import ROWS, fill

PARTS = ("cell", "reports")
CELL = ["method=vanilla", "length=160", "n=1"]

BENCH = """
import sys
from bench.cli.main import main
try:
    main(sys.argv[1:])
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(peak.split()[1], file=sys.stderr)
"""
"""Runs a command, then prints the peak memory of the command's process in KiB."""

RANK = """
import sys
from bench.rows.store import Store
names = ["task", "method", "value", "lat_ratio", "mem_ratio"]
rows = Store(sys.argv[1]).rows(names, {"status": "ok"})
order = rows.sort_by([("task", "ascending"), ("value", "descending"), ("lat_ratio", "ascending")])
print(order.num_rows, order.group_by(["task", "method"]).aggregate([("value", "max")]).num_rows)
print(0, file=sys.stderr)
"""

Cost = tuple[float, float, float]
"""Elapsed seconds, CPU seconds, and peak memory in MiB (0: not measured)."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=("all", *PARTS), default="all")
    parser.add_argument("--model", default="embedded", help="the model of the cell")
    options = parser.parse_args(words)
    if "all" in options.parts:
        options.parts = list(PARTS)
    return options


def main() -> None:
    options = arguments()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        if "cell" in options.parts:
            cell = bench("run", f"model={options.model}", f"results={folder}/runs", *CELL)
            report("a cell with next to no work", cost(cell), 6, 80)
            report("the same cell, already stored", cost(cell), None, 80)
            report("the same, quality alone", cost([*cell, "measure=quality"]), 6, 80)
            report("bench ls", cost(bench("ls")), 0.3, None)
        if "reports" in options.parts:
            rows = f"{folder}/rows"
            fill(Path(rows))
            ranking = [sys.executable, "-c", RANK, rows]
            report(f"reading and ranking {ROWS:,} rows", cost(ranking), 5, None)
            tables = bench("report", "--results", rows, "--out", f"{folder}/out")
            report(f"all tables of {ROWS:,} rows", cost(tables), 60, None)


def bench(*arguments: str) -> list[str]:
    """A `bench` command line that measures its own memory."""
    return [sys.executable, "-c", BENCH, *arguments]


def cost(command: Sequence[str]) -> Cost:
    """Run a command; exits with its error output if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    elapsed_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        sys.exit(run.stderr)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return elapsed_s, cpu_s, int(run.stderr.split()[-1]) / 1024


def report(what: str, figures: Cost, goal_s: float | None, goal_mib: float | None) -> None:
    """Print one line."""
    elapsed_s, cpu_s, mib = figures
    line = f"{what:<34} {elapsed_s:6.2f} s{beside(elapsed_s, goal_s)}, {cpu_s:.2f} CPU s"
    if mib:
        line += f", peak {mib:,.0f} MiB{beside(mib, goal_mib)}"
    print(line, flush=True)


def beside(figure: float, goal: float | None) -> str:
    """The goal of a figure, and whether it is missed."""
    if goal is None:
        return ""
    return f" (goal {goal:g}{'' if figure <= goal else ', MISSED'})"


if __name__ == "__main__":
    main()
