"""The commands around a sweep: bench plan (before it) | status (while it runs)."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import tables
from bench.commands import FORMAT_HELP, parser_for
from bench.errors import RequestError
from bench.rows import DEFAULT

PLAN_COLUMNS = ("state", "words", "seconds", "memory_bytes", "reason", "row_id")
STYLES = {"done": "green", "to do": "cyan", "unsupported": "yellow", "refused": "red",
          "over budget": "yellow", "ok": "green", "running": "cyan", "waits": "dim"}  # fmt: skip


def plan(arguments: Sequence[str]) -> int:
    """The cells of a request, what each will cost, and which are done. Starts nothing."""
    parser = parser_for(
        "plan",
        "what bench run -m would do with these words: done, to do, unsupported, time and memory",
        "bench plan method=vanilla,vcc length=1024,4096\n"
        "bench plan experiment=frontier budget=2h\n\n"
        "Times are those of one cell after the other. They follow the rows in the results folder;\n"
        "without any, they can be wrong by a factor of three.",
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="see bench run --help")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--format", choices=tables.FORMATS, default="auto", help=FORMAT_HELP)
    options = parser.parse_args(arguments)
    from rich.markup import escape

    from bench import plan as planning
    from bench import summary
    from bench.spans import cells, memory, span

    made = planning.plan(options.words)
    if tables.tabular(options.format):
        tables.tsv(PLAN_COLUMNS, map(_record, made.cells))
    else:
        tables.draw(
            "",
            ("", "cell", "time", "memory", "why"),
            (
                (
                    f"[{STYLES[p.state]}]{p.state}[/]",
                    escape(p.title),
                    span(p.seconds) if p.runs else "",
                    memory(p.bytes) if p.runs else "",
                    escape(p.reason.partition("\n")[0][:100]),
                )
                for p in made.cells
            ),
            left=("", "cell", "why"),
        )
    # Beside a program's table, the summary is no part of it.
    out = sys.stderr if tables.tabular(options.format) else sys.stdout
    print(summary.heading(made), file=out)
    if made.open:
        print(f"up to {memory(max(p.bytes for p in made.open))} a process", file=out)
    if left := made.of("over budget"):
        print(f"the budget leaves {cells(len(left))} unmeasured", file=out)
    if made.warning:
        print(f"bench: {made.warning}", file=sys.stderr)
    return 2 if made.of("refused") else 0


def _record(planned: Any) -> dict[str, Any]:
    return {
        "state": planned.state,
        "words": " ".join(planned.words),
        "seconds": round(planned.seconds) if planned.runs else None,
        "memory_bytes": planned.bytes if planned.runs else None,
        "reason": planned.reason,
        "row_id": planned.row_id,
    }


def status(arguments: Sequence[str]) -> int:
    """Exit code 1 when a cell of a sweep shown has failed."""
    parser = parser_for(
        "status",
        "how far sweeps are, from the queue and the store together",
        "bench status\nbench status --cancel 20260101T120000-3f2a",
    )
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="its id; the newest without it")
    parser.add_argument("--results", type=Path, default=DEFAULT, metavar="DIR")
    parser.add_argument("--all", action="store_true", help="every sweep of the folder")
    parser.add_argument("--cancel", action="store_true", help="take its jobs out of the queue")
    parser.add_argument("--format", choices=tables.FORMATS, default="auto", help=FORMAT_HELP)
    options = parser.parse_args(arguments)
    from bench import plan as planning
    from bench.record import sweeps

    found = list(sweeps(options.results.expanduser().resolve()))
    if not found:
        raise RequestError(f"no sweep in {options.results}; bench run -m begins one")
    if options.sweeps:
        named = [r for r in found if any(r.id.startswith(word) for word in options.sweeps)]
        if not named:
            raise RequestError(f"no sweep {options.sweeps[0]}; the newest is {found[-1].id}")
        found = named
    elif not options.all:
        found = found[-1:]
    _settle(found, options.results.expanduser().resolve())
    done = planning.finished(row for _, row in planning.measured(options.results))
    failed = 0
    for record in found:
        if options.cancel:
            _cancel(record)
        failed += _show(record, done, options.format)
    return 1 if failed else 0


def _settle(records: Sequence[Any], results: Path) -> None:
    """Rows for jobs that died when the process that began them was gone."""
    from bench import launchers, settle, slurm

    if not any(record.content()["engine"] == launchers.SLURM for record in records):
        return
    try:
        if count := settle.left_behind(results):
            print(f"bench: {count} lost jobs of this folder are rows now", file=sys.stderr)
    except slurm.SlurmError as error:
        print(f"bench: {error}", file=sys.stderr)


def _cancel(record: Any) -> None:
    from bench import launchers, slurm

    if record.content()["engine"] != launchers.SLURM:
        raise RequestError(f"{record.id} has no jobs in a queue: stop it where it runs, by Ctrl-C")
    try:
        slurm.cancel(record.queue_name)
    except slurm.SlurmError as error:
        raise RequestError(str(error)) from error


def _show(record: Any, done: dict[str, Any], form: str) -> int:
    """One sweep; returns how many of its cells failed."""
    from rich.markup import escape

    content = record.content()
    jobs, alive = _queue(record, content)
    count = len(content["cells"])
    cells = [_cell_state(record, content, i, done, jobs, alive) for i in range(count)]
    if tables.tabular(form):
        tables.tsv(("sweep", "cell", "state", "job", "node", "about"), cells)
    else:
        started = datetime.fromtimestamp(content["started"])
        print(f"{record.id} · launcher {content['launcher']} · since {started:%Y-%m-%d %H:%M}")
        print(content["command"])
        tables.draw(
            "",
            ("", "cell", "job", "node", "about"),
            (
                (f"[{STYLES.get(c['state'], 'red')}]{c['state']}[/]", escape(c["cell"]),
                 c["job"] or "", c["node"] or "", escape(c["about"]))
                for c in cells
            ),
            left=("", "cell", "job", "node", "about"),
        )  # fmt: skip
        counts = Counter(c["state"] for c in cells)
        print(" · ".join(f"{number} {state}" for state, number in counts.items()))
    return sum(1 for c in cells if c["failed"])


def _queue(record: Any, content: dict[str, Any]) -> tuple[dict[int, Any], bool]:
    """Number of a cell → its job in the queue, and whether the sweep's own process lives here."""
    from bench import launchers, settle, slurm

    alive = settle.alive(content)
    if content["engine"] != launchers.SLURM:
        return {}, alive
    try:
        jobs = [*slurm.queued(record.queue_name)]
    except slurm.SlurmError as error:
        print(f"bench: {error}", file=sys.stderr)
        return {}, alive
    return slurm.numbered(jobs), alive


def _cell_state(
    record: Any, content: dict[str, Any], i: int, done: dict[str, Any], jobs: Any, alive: bool
) -> dict[str, Any]:
    planned, note, job = content["cells"][i], record.read(i), jobs.get(i)
    found = {"sweep": record.id, "cell": " ".join(planned["words"]), "about": "", "failed": False}
    found |= {"job": note.get("slurm_job_id"), "node": note.get("node")}
    if note.get("state") == "ended":
        about = note.get("figures") or note["reason"].partition("\n")[0][:80]
        return found | {"state": note["status"], "about": about, "failed": bool(note["code"])}
    if job:
        stage = " ".join(map(str, note.get("stage", [])[:1])) if job.state == "RUNNING" else job.why
        return found | {"state": _words(job.state), "job": job.id, "node": job.node, "about": stage}
    if planned["sketch"] in done:
        return found | {"state": "done"}
    if note and alive:
        return found | {"state": "running", "about": str(note.get("stage", [""])[0])}
    if note:
        return found | {"state": "cut", "about": "the same command goes on with it"}
    return found | {"state": "waits" if alive else "to do"}


def _words(state: str) -> str:
    return {"PENDING": "waits", "RUNNING": "running"}.get(state, state.lower())


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "plan": (plan, "what a sweep would do, how long it takes, what is done"),
    "status": (status, "how far sweeps are: queue and store together"),
}
