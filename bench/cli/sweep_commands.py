"""The commands around a sweep: bench plan (before it) | status (while it runs)."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import RequestError
from bench.terminal import text_table
from bench.terminal.options import command, format_option, request_words, results_option

if TYPE_CHECKING:
    from bench.sweep.log import CellOutcome

PLAN_COLUMNS = ("state", "overrides", "seconds", "memory_bytes", "reason", "row_id", "group")
STYLES = {"done": "green", "to do": "cyan", "unsupported": "yellow", "refused": "red",
          "over budget": "yellow", "ok": "green", "running": "cyan", "waits": "dim"}  # fmt: skip


def run_sweep(overrides: Sequence[str]) -> int:
    """Run what isn't done of a request's cells and store a row of each. Exit code 2 when a request
    was refused, 1 when a run failed."""
    from bench.rows.shards import StoreError
    from bench.sweep import launchers, log, slurm, sweep
    from bench.sweep import plan as planning
    from bench.sweep.plan import PlanState
    from bench.terminal import sweep_summary
    from bench.terminal.run_progress import SweepProgress

    plan = planning.plan(overrides)
    if plan.engine == launchers.SLURM and plan.open and slurm.settle(plan.results):
        plan = planning.plan(overrides)  # jobs of earlier sweeps that were lost have rows now
    command = shlex.join(["bench", "run", "-m", *overrides])
    stream = log.EventStream(plan.events, log.new_id())
    stream.check_writable()
    print(sweep_summary.heading(plan))
    if plan.warning:
        print(f"bench: {plan.warning}", file=sys.stderr)
    outcomes: list[CellOutcome] = []
    done = len(plan.of(PlanState.DONE)) + len(plan.of(PlanState.UNSUPPORTED))
    with stream.around(
        cells=len(plan.cells), done=done, to_run=len(plan.open), command=command,
        launcher=plan.launcher_name, results=str(plan.results),
    ):  # fmt: skip
        cells = plan.open
        kinds = {PlanState.REFUSED: "cell_refused", PlanState.OVER_BUDGET: "cell_skipped"}
        for planned in plan.cells:
            if planned.state in kinds and planned not in cells:
                event = kinds[planned.state]
                stream.write(event, overrides=planned.overrides, reason=planned.reason)
        if cells:
            display = SweepProgress(
                [cell.title for cell in cells], [cell.seconds for cell in cells], plan.n_parallel
            )
            outcomes = sweep.run(plan, command, display, stream.sweep)
        stream.exit_code = sweep.exit_code(plan, outcomes)
    if unmeasured := sweep.left_out(plan, outcomes):
        try:
            sweep.store_rows(plan, unmeasured, here=plan.engine != launchers.SLURM)
        except (RequestError, StoreError) as error:
            print(f"bench: no rows for what the budget left out: {error}", file=sys.stderr)
    sweep_summary.show(plan, outcomes)
    methods = [p.cell.method["name"] for p in plan.cells if p.cell and p.row_id]
    measured = zip(plan.open, outcomes, strict=False)
    methods += [p.cell.method["name"] for p, outcome in measured if p.cell and not outcome.code]
    if line := sweep_summary.after_sweep(methods, overrides):
        print(line)
    return sweep.exit_code(plan, outcomes)


@command(
    "Print what bench run -m would do with these words: done, to do, unsupported, time and memory. "
    "For the words, see bench run --help.",
    "bench plan method=vanilla,vcc length=1024,4096\n"
    "bench plan experiment=frontier time=2h\n\n"
    "Times are those of one cell after the other. They follow the rows in the results folder;\n"
    "without any, they can be wrong by a factor of three.",
)
@request_words()
@click.option("-m", "--multirun", is_flag=True, hidden=True, expose_value=False)
@format_option()
def plan(words: Sequence[str], form: str) -> int:
    from rich.markup import escape

    from bench.request.answering import models_for
    from bench.request.cell import task_of
    from bench.sweep import plan as planning
    from bench.sweep.plan import PlanState
    from bench.terminal import sweep_summary
    from bench.units import counted, memory, span
    from tasks.base import ANSWERS

    made = planning.plan(words)
    if text_table.tabular(form):
        records = [
            {
                "state": p.state,
                "overrides": " ".join(p.overrides),
                "seconds": round(p.seconds) if p.runs else None,
                "memory_bytes": p.bytes if p.runs else None,
                "reason": p.reason,
                "row_id": p.row_id,
                "group": p.group,
            }
            for p in made.cells
        ]
        text_table.write(form, PLAN_COLUMNS, records)
    else:
        lines = [
            (f"[{STYLES[p.state]}]{p.state}[/]", escape(p.title),
             span(p.seconds) if p.runs else "", memory(p.bytes) if p.runs else "",
             escape(p.reason.partition("\n")[0][:100]))
            for p in made.cells
        ]  # fmt: skip
        text_table.draw("", ("", "cell", "time", "memory", "why"), lines, ("", "cell", "why"))
    # Beside a program's table, the summary is no part of it.
    out = sys.stderr if text_table.tabular(form) else sys.stdout
    print(sweep_summary.heading(made), file=out)
    for line in sweep_summary.sharing(made):
        print(line, file=out)
    if made.open:
        print(f"up to {memory(max(p.bytes for p in made.open))} a process", file=out)
    if left := made.of(PlanState.OVER_BUDGET):
        print(f"the budget leaves {counted(len(left), 'cell')} unmeasured", file=out)
    kinds: dict[str, None] = {}
    for task in {p.request["task"]["name"]: p.request["task"] for p in made.cells}.values():
        with contextlib.suppress(RequestError):
            kinds[task_of(task).answers] = None
    for kind in kinds:
        print(f"models that answer with {ANSWERS[kind]}: {', '.join(models_for(kind))}", file=out)
    if made.warning:
        print(f"bench: {made.warning}", file=sys.stderr)
    return 2 if made.of(PlanState.REFUSED) else 0


@command(
    "How far sweeps are, from the queue and the store together: those of these ids, or the newest.",
    "bench status\nbench status --cancel 20260101T120000-3f2a",
)
@click.argument("ids", nargs=-1, metavar="[SWEEP]...")
@results_option("folder")
@click.option("--all", "every", is_flag=True, help="Every sweep of the folder.")
@click.option("--cancel", is_flag=True, help="Take its jobs out of the queue.")
@format_option()
def status(ids: Sequence[str], folder: Path, every: bool, cancel: bool, form: str) -> int:
    """Exit code 1 when a cell of a sweep shown has failed."""
    from bench.sweep import launchers, slurm
    from bench.sweep import plan as planning
    from bench.sweep.log import sweeps

    results = folder.expanduser().resolve()
    found = list(sweeps(results))
    if not found:
        raise RequestError(f"no sweep in {folder}; bench run -m begins one")
    if ids:
        named = [r for r in found if any(r.id.startswith(word) for word in ids)]
        if not named:
            raise RequestError(f"no sweep {ids[0]}; the newest is {found[-1].id}")
        found = named
    elif not every:
        found = found[-1:]
    if count := slurm.settle(results):
        print(f"bench: {count} lost jobs of this folder are rows now", file=sys.stderr)
    done = planning.finished(row for _, row in planning.measured(results))
    failed = 0
    for record in found:
        if cancel and record.content()["engine"] != launchers.SLURM:
            raise RequestError(
                f"{record.id} has no jobs in a queue: stop it where it runs, by Ctrl-C"
            )
        if cancel:
            try:
                slurm.cancel(record.queue_name)
            except slurm.SlurmError as error:
                raise RequestError(str(error)) from error
        failed += _show(record, done, form)
    return 1 if failed else 0


def _show(record: Any, done: dict[str, Any], form: str) -> int:
    """One sweep; returns how many of its cells failed."""
    from rich.markup import escape

    from bench.sweep import launchers, slurm

    content = record.content()
    jobs: dict[int, Any] = {}
    alive = slurm.is_alive(content)
    if content["engine"] == launchers.SLURM:
        try:
            jobs = slurm.numbered(slurm.queued(record.queue_name))
        except slurm.SlurmError as error:
            print(f"bench: {error}", file=sys.stderr)
    notes = [record.read_note(i) for i in range(len(content["cells"]))]
    cells = [
        {"sweep": record.id, "cell": " ".join(planned["overrides"]),
         "job": note.get("slurm_job_id"), "node": note.get("node"), "about": "",
         **_cell_state(note, jobs.get(i), planned["plan_key"] in done, alive)}
        for i, (planned, note) in enumerate(zip(content["cells"], notes, strict=True))
    ]  # fmt: skip
    if text_table.tabular(form):
        text_table.write(form, ("sweep", "cell", "state", "job", "node", "about"), cells)
    else:
        started = datetime.fromtimestamp(content["started"])
        print(f"{record.id} · launcher {content['launcher']} · since {started:%Y-%m-%d %H:%M}")
        print(content["command"])
        lines = [
            (f"[{STYLES.get(c['state'], 'red')}]{escape(c['state'])}[/]",
             *(escape(str(c[name] or "")) for name in ("cell", "job", "node", "about")))
            for c in cells
        ]  # fmt: skip
        names = ("", "cell", "job", "node", "about")
        text_table.draw("", names, lines, names)
        counts = Counter(c["state"] for c in cells)
        print(" · ".join(f"{number} {state}" for state, number in counts.items()))
    return sum(bool(note.get("code")) for note in notes)


def _cell_state(note: dict[str, Any], job: Any, is_done: bool, alive: bool) -> dict[str, Any]:
    """What the note of a cell, its job in the queue and the rows say together."""
    stage = str(note.get("stage", [""])[0])
    if note.get("state") == "ended":
        about = note.get("figures") or note["reason"].partition("\n")[0][:80]
        return {"state": note["status"], "about": about}
    if job:
        state = {"PENDING": "waits", "RUNNING": "running"}.get(job.state, job.state.lower())
        about = stage if job.state == "RUNNING" else job.detail
        return {"state": state, "job": job.id, "node": job.node, "about": about}
    if is_done:
        return {"state": "done"}
    if note and alive:
        return {"state": "running", "about": stage}
    if note:
        return {"state": "cut", "about": "the same command goes on with it"}
    return {"state": "waits" if alive else "to do"}
