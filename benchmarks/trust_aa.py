"""Frequency of verdicts on vanilla against itself: `make trust-aa`, about an hour on two cores.

    make trust-aa                        # 200 cells, in docs/trust-aa.md
    make trust-aa ARGS='--minutes 10'    # a part of them; the same command continues
    make trust-aa ARGS='--load loaded'   # that half of them
    make trust-aa ARGS='--cells 4 --results DIR --out FILE'

Vanilla under another name is timed against vanilla with a seed for each cell, at one and two
threads, in turns on the quiet machine and next to a process that keeps one core busy. Faster and
slower are false verdicts. The exit code is 1 if more than 5 % of the cells get them, or a cell
failed. Don't use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import bench
from bench.request.plugins import CONF_PATH, ROOT
from bench.rows.columns import Row
from bench.rows.comparison import Comparison
from bench.statistics import scores
from bench.status import Status, Verdict

CELLS = 200
ALLOWED_PCT = 5.0
REQUEST = ("method=twin", "model=embedded", "length=512", "n=4", "measure=speed")
FALSE = (Verdict.FASTER, Verdict.SLOWER)
SECTION = "\n## "
TITLE = "# False verdicts of vanilla against itself"
INTRODUCTION = f"""{TITLE}

`make trust-aa`: cells of vanilla against itself, each with another seed
(`{" ".join(REQUEST)}`).
*Loaded*: next to a process that keeps one core busy. *False*: of the cells with a verdict, those
that are faster or slower, with the 95 % interval (Clopper and Pearson). Allowed: {ALLOWED_PCT:g} %.
"""
VERDICTS = (*FALSE, Verdict.SAME, Verdict.UNDECIDED)
BUSY = """
import sys
from bench.host import linux
linux.die_with_parent(int(sys.argv[1]))
while True:
    pass
"""


class Setting(NamedTuple):
    """The conditions of a cell: `load` is quiet, or loaded with one busy core."""

    load: str
    threads: int


LOADS = ("quiet", "loaded")
SETTINGS = tuple(Setting(load, threads) for threads in (1, 2) for load in LOADS)
Measured = list[tuple[Setting, Row]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=CELLS, metavar="N")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--load", choices=LOADS, help="only cells of this half are measured")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "trust-aa")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "trust-aa.md")
    options = parser.parse_args()
    os.environ[CONF_PATH] = str(ROOT / "tests" / "trust" / "conf")
    before = options.out.read_text() if options.out.exists() else ""
    if before and not before.startswith(TITLE):
        print(f"trust-aa: {options.out} is another page; give a new file", file=sys.stderr)
        return 2
    measured: Measured = []
    try:
        for each in _measure(options.cells, options.load, options.results, 60 * options.minutes):
            measured.append(each)
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
    if not measured:
        return 1
    options.out.write_text(page(measured, options.cells, before))
    print(f"{options.out}: {_share([row for _, row in measured])} false verdicts")
    failed = any(row["status"] != Status.OK for _, row in measured)
    return int(failed or false_pct([row for _, row in measured]) > ALLOWED_PCT)


def _measure(
    cells: int, load: str | None, results: Path, seconds: float
) -> Iterator[tuple[Setting, Row]]:
    """Measures the cells of this load (None: of both) in their order, until the time is over."""
    end = time.monotonic() + seconds
    for i in range(cells):
        setting, seed = SETTINGS[i % len(SETTINGS)], i // len(SETTINGS)
        if load not in (None, setting.load):
            continue
        if time.monotonic() > end:
            return
        cell = bench.compose(*REQUEST, f"threads={setting.threads}", f"seed={seed}")
        with _busy_core() if setting.load == "loaded" else contextlib.nullcontext():
            row = bench.run(cell, results / setting.load, progress=lambda *_: None)
        if not row["reused"]:
            where = f"{setting.load} threads={setting.threads} seed={seed}"
            print(f"{i + 1} of {cells}: {where} {_figures(row)}", file=sys.stderr, flush=True)
        yield setting, row


@contextlib.contextmanager
def _busy_core() -> Iterator[None]:
    arguments = [sys.executable, "-c", BUSY, str(os.getpid())]
    with subprocess.Popen(arguments, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.kill()


def page(measured: Measured, cells: int, before: str = "") -> str:
    """The result as Markdown: a section on this machine, and the page's sections on others."""
    mine = _section(measured, cells)
    machine = mine.partition("\n")[0]
    others = [each for each in before.split(SECTION)[1:] if each.partition("\n")[0] != machine]
    return SECTION.join([INTRODUCTION, mine, *others])


def _section(measured: Measured, cells: int) -> str:
    rows = [row for _, row in measured]
    days = sorted({(row["created_utc"] or "")[:10] for row in rows})
    last = rows[-1]
    lines = [
        f"{last['cpu_model']}, {last['cores_phys']} cores (host {last['host_id']})",
        "",
        f"{len(rows)} of {cells} cells, torch {last['torch']}, {days[0]} to {days[-1]}.",
        *(["", "**Not complete**: the same command continues."] if len(rows) < cells else []),
        "",
        f"| | threads | cells | {' | '.join(VERDICTS)} | failed | called noisy | false |",
        "|---" * (len(VERDICTS) + 6) + "|",
    ]
    for setting in SETTINGS:
        of_setting = [row for where, row in measured if where == setting]
        lines.append(_line(setting.load, str(setting.threads), of_setting))
    lines.append(_line("all", "", rows))
    if wrong := [each for each in measured if each[1].get("lat_verdict") in FALSE]:
        lines += ["", "| | threads | seed | |", "|---|---|---|---|"]
        lines += [f"| {s.load} | {s.threads} | {r['seed']} | {_figures(r)} |" for s, r in wrong]
    return "\n".join(lines) + "\n"


def _line(load: str, threads: str, rows: Sequence[Row]) -> str:
    verdicts = [sum(row.get("lat_verdict") == verdict for row in rows) for verdict in VERDICTS]
    failed = sum(row["status"] != Status.OK for row in rows)
    noisy = sum(bool(row.get("noisy")) for row in rows)
    values = [load, threads, len(rows), *verdicts, failed, noisy, _share(rows)]
    return f"| {' | '.join(map(str, values))} |"


def false_pct(rows: Iterable[Row]) -> float:
    """Percent of the cells with a verdict that got a false one; 0 if none has a verdict."""
    return _false(rows).value


def _false(rows: Iterable[Row]) -> scores.Estimate:
    verdicts = [Comparison.of(row, "lat").verdict for row in rows]
    return scores.mean([100.0 * (verdict in FALSE) for verdict in verdicts if verdict] or [0.0])


def _share(rows: Sequence[Row]) -> str:
    found = _false(rows)
    if len(rows) < 2 or found.lo is None:
        return f"{found.value:.1f} %"
    return f"{found.value:.1f} % ({found.lo:.1f} … {found.hi:.1f})"


def _figures(row: Row) -> str:
    latency = Comparison.of(row, "lat")
    if latency.ratio is None:
        return f"{row['status']}: {(row.get('status_detail') or 'no reason').splitlines()[0]}"
    interval = f"{latency.ratio_ci_lo:.3f} … {latency.ratio_ci_hi:.3f}"
    return f"×{latency.ratio:.3f} ({interval}) {latency.verdict}"


if __name__ == "__main__":
    sys.exit(main())
