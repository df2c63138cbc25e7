"""The commands that run cells, and those about sweeps: bench run | plan | status | train."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import RequestError, RunError
from bench.status import PlanState, Status
from bench.terminal import output
from bench.terminal.options import (
    as_written,
    check_words,
    command,
    format_option,
    request_words,
    results_option,
)

if TYPE_CHECKING:
    from bench.execution.supervisor import Progress
    from bench.request.cell import Cell
    from bench.sweep.log import CellOutcome, Record
    from bench.sweep.plan import Plan

WORTH_SAYING_S = 10.0
"""If the work before the first stage takes longer, it is announced."""
MAX_ROWS = 60
"""Rows that are listed at the end of a sweep; bench results lists more."""
PLAN_COLUMNS = ("state", "overrides", "seconds", "memory_bytes", "reason", "row_id", "group")


@command(as_written(Path(__file__).with_name("templates").joinpath("run_help.txt").read_text()))
@click.option("-m", "--multirun", is_flag=True, help="Run every combination of the values.")
@click.option("--details", is_flag=True, help="Show each figure of the row and each note.")
@request_words()
def run(words: Sequence[str], multirun: bool, details: bool) -> int:
    overrides = check_words(words)
    if multirun or any(word.startswith("launcher=") for word in words):
        return _run_sweep(overrides)
    from bench.execution import runner
    from bench.host.host import RUN_ID
    from bench.request import parameters, weights
    from bench.request.cell import Cell
    from bench.request.compose import compose, events_path
    from bench.sweep import log
    from bench.sweep.estimate import stages_s
    from bench.terminal import row_table, run_progress
    from bench.units import span

    request = compose(overrides)
    parameters.check_values(request)
    stream = log.EventStream(events_path(request), RUN_ID)
    stream.check_writable()
    if warning := weights.beyond_positions(request):
        print(f"bench: {warning}", file=sys.stderr)
    if (seconds := parameters.generating_s(request)) > WORTH_SAYING_S:
        print(f"generating rows: about {span(seconds)} …", file=sys.stderr)
    results = Path(request["results"]).expanduser().resolve()
    told = [override for override in overrides if not override.startswith("events=")]
    called = shlex.join(["bench", "run", *told])
    began = time.monotonic()
    with stream.one_cell(told, command=called, launcher="local", results=str(results)):
        cell = Cell.of(request)
        with run_progress.progress(cell.title, stages_s(cell)) as progress:

            def report(stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
                stream.stage(0, stage, done, total)
                progress(stage, done, total, note)

            how = {name: request[name] for name in runner.REQUESTED}
            row = runner.run(cell, results, progress=report, **how)
        outcome = log.CellOutcome.of(row, seconds=time.monotonic() - began)
        stream.end(0, outcome)
        stream.exit_code = outcome.code
    if row["reused"]:
        print(f"done on {row['created_utc']}; FORCE=1 (force=true) runs it again")
    row_table.show(row, results, details)
    if line := after_row(row, overrides):
        print(line)
    return outcome.code


def _run_sweep(overrides: Sequence[str]) -> int:
    """Run the unfinished cells of a request and store a row for each. Exit code 2 when a request
    was refused, 1 when a run failed."""
    from bench.rows.shards import StoreError
    from bench.sweep import launchers, log, slurm, sweep
    from bench.sweep import plan as planning
    from bench.terminal.run_progress import SweepProgress

    plan = planning.plan(overrides)
    if plan.engine == launchers.SLURM and plan.open and slurm.settle(plan.results):
        plan = planning.plan(overrides)  # jobs of earlier sweeps that were lost have rows now
    command = shlex.join(["bench", "run", "-m", *overrides])
    stream = log.EventStream(plan.events, log.new_id())
    stream.check_writable()
    print(planning.heading(plan))
    if plan.warning:
        print(f"bench: {plan.warning}", file=sys.stderr)
    outcomes: list[CellOutcome] = []
    cells = plan.open
    done = len(plan.of(PlanState.DONE)) + len(plan.of(PlanState.UNSUPPORTED))
    with stream.around(
        cells=len(plan.cells), done=done, to_run=len(cells), command=command,
        launcher=plan.launcher_name, results=str(plan.results),
    ):  # fmt: skip
        kinds = {PlanState.REFUSED: "cell_refused", PlanState.OVER_BUDGET: "cell_skipped"}
        for planned in plan.cells:
            if planned.state in kinds and planned not in cells:
                event = kinds[planned.state]
                stream.write(event, overrides=planned.overrides, reason=planned.reason)
        if cells:
            titles, seconds = [cell.title for cell in cells], [cell.seconds for cell in cells]
            display = SweepProgress(titles, seconds, plan.n_parallel)
            outcomes = sweep.run(plan, command, display, stream.sweep)
        stream.exit_code = sweep.exit_code(plan, outcomes)
    if unmeasured := sweep.left_out(plan, outcomes):
        try:
            sweep.store_rows(plan, unmeasured, here=plan.engine != launchers.SLURM)
        except (RequestError, StoreError) as error:
            print(f"bench: no rows for what the budget left out: {error}", file=sys.stderr)
    ids = [outcome.row_id for outcome in outcomes if outcome.row_id]
    if 0 < len(ids) <= MAX_ROWS and sys.stdout.isatty():
        from bench.rows.store import LIGHT, Store
        from bench.terminal import rows_table

        rows = Store(plan.results).rows(LIGHT, {"row_id": ids}).to_pylist()
        print()
        rows_table.show(sorted(rows, key=lambda row: ids.index(row["row_id"])))
    print(f"\n{sweep.summary(plan, outcomes)}")
    if line := after_sweep(plan, outcomes, overrides):
        print(line)
    return stream.exit_code


# The next commands that a user may need.


def after_row(row: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """After one cell: a sweep of the same request, its comparison, the page; empty if the cell
    failed, since its error must be solved first."""
    from bench.request.schema import BASELINE

    if row["status"] != Status.OK:
        return ""
    left_out = ("method=", "engine=", "length=", "force=", "experiment=")
    words = [word for word in overrides if not word.startswith(left_out)]
    if row["method"] == BASELINE:
        other = shlex.join(["bench", "run", "method=NAME", f"length={row['length']}", *words])
        return f"next: bench ls methods; then {other}"
    lengths = f"{row['length']},{2 * row['length']}"
    methods = f"method={BASELINE},{row['method']}"
    sweep = shlex.join(["bench", "run", "-m", methods, f"length={lengths}", *words])
    return f"next: {sweep}; then {_after(row['method'], words)}"


def after_sweep(plan: Plan, outcomes: Sequence[CellOutcome], overrides: Sequence[str]) -> str:
    """The comparison and the page of the sweep's rows; empty if there are none."""
    from bench.request.schema import BASELINE

    ended = zip(plan.open, outcomes, strict=False)
    cells = [p.cell for p in plan.cells if p.row_id] + [p.cell for p, one in ended if not one.code]
    methods = [cell.method["name"] for cell in cells if cell]
    others = [method for method in methods if method != BASELINE]
    return f"next: {_after(others[0] if others else BASELINE, overrides)}" if methods else ""


def _after(method: str, overrides: Sequence[str]) -> str:
    """The comparison with vanilla, unless the method is vanilla, and the leaderboard."""
    from bench.request.schema import BASELINE

    results = [word for word in overrides if word.startswith("results=")]
    commands = [["bench", "leaderboard", *results]]
    if method != BASELINE:
        both = [f"method={BASELINE}", f"method={method}"]
        commands.insert(0, ["bench", "compare", *both, *results])
    return "; ".join(map(shlex.join, commands))


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

    from bench.sweep import plan as planning
    from bench.units import counted, memory, span

    made = planning.plan(words)
    records = (
        {
            **vars(p),
            "overrides": " ".join(p.overrides),
            "seconds": round(p.seconds) if p.runs else None,
            "memory_bytes": p.bytes if p.runs else None,
        }
        for p in made.cells
    )
    lines = (
        (output.styled(p.state), escape(p.title), span(p.seconds) if p.runs else "",
         memory(p.bytes) if p.runs else "", escape(p.reason.partition("\n")[0][:100]))
        for p in made.cells
    )  # fmt: skip
    heads, left = ("", "cell", "time", "memory", "why"), ("", "cell", "why")
    output.show(form, PLAN_COLUMNS, records, heads, lines, left=left)
    output.remark(form, planning.heading(made))
    for line in planning.sharing(made):
        output.remark(form, line)
    if made.open:
        most = memory(max(p.bytes for p in made.open))
        output.remark(form, f"up to {most} a process")
    if made.texts:
        n, label = made.texts
        nats = f"a difference of {planning.DETECTABLE_NATS} nats from vanilla"
        output.remark(form, f"{nats} takes {counted(n, 'text')}, by a row of {label}")
    if over := made.of(PlanState.OVER_BUDGET):
        output.remark(form, f"the budget leaves {counted(len(over), 'cell')} unmeasured")
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
    """Exit code 1 when a cell of a displayed sweep has failed."""
    from bench.sweep import launchers, slurm
    from bench.sweep import plan as planning
    from bench.sweep.log import sweeps

    results = folder.expanduser().resolve()
    found = list(sweeps(results))
    if not found:
        raise RequestError(f"no sweep in {folder}; bench run -m begins one")
    named = [record for record in found if record.id.startswith(tuple(ids))]
    if ids and not named:
        raise RequestError(f"no sweep {ids[0]}; the newest is {found[-1].id}")
    found = named if ids else found if every else found[-1:]
    if count := slurm.settle(results):
        print(f"bench: {count} lost jobs of this folder are rows now", file=sys.stderr)
    done = planning.finished(planning.measured(results))
    failed = 0
    for record in found:
        if cancel:
            if record.content["engine"] != launchers.SLURM:
                raise RequestError(
                    f"{record.id} has no jobs in a queue: stop it where it runs, by Ctrl-C"
                )
            slurm.output(["scancel", f"--name={record.queue_name}"])
        failed += _show(record, done, form)
    return 1 if failed else 0


def _show(record: Record, done: dict[str, Any], form: str) -> int:
    """Show one sweep. Returns the number of its failed cells."""
    from rich.markup import escape

    from bench.sweep import launchers, slurm

    content, jobs, alive = record.content, dict[int, Any](), slurm.is_alive(record)
    if content["engine"] == launchers.SLURM:
        try:
            jobs = slurm.by_cell(record, slurm.queued(record.queue_name))
        except slurm.SlurmError as error:
            print(f"bench: {error}", file=sys.stderr)
    notes = [record.read_note(i) for i in range(len(content["cells"]))]
    cells = [
        {"sweep": record.id, "cell": " ".join(planned["overrides"]),
         "job": note.get("slurm_job_id"), "node": note.get("node"), "about": "",
         **_cell_state(note, jobs.get(i), planned["plan_key"] in done, alive)}
        for i, (planned, note) in enumerate(zip(content["cells"], notes, strict=True))
    ]  # fmt: skip
    if not output.tabular(form):
        started = datetime.fromtimestamp(content["started"])
        print(f"{record.id} · launcher {content['launcher']} · since {started:%Y-%m-%d %H:%M}")
        print(content["command"])
    about = ("cell", "job", "node", "about")
    lines = (
        (output.styled(c["state"]), *(escape(str(c[name] or "")) for name in about)) for c in cells
    )
    names = ("sweep", "cell", "state", "job", "node", "about")
    output.show(form, names, cells, ("", *about), lines)
    if not output.tabular(form):
        counts = Counter(c["state"] for c in cells)
        print(" · ".join(f"{number} {state}" for state, number in counts.items()))
    return sum(bool(note.get("code")) for note in notes)


def _cell_state(note: dict[str, Any], job: Any, is_done: bool, alive: bool) -> dict[str, Any]:
    """The state of a cell from its note, its job in the queue and the stored rows."""
    from bench.sweep.log import stage_of

    stage = stage_of(note)
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


@command(as_written(Path(__file__).with_name("templates").joinpath("train_help.txt").read_text()))
@click.option("--show", is_flag=True, help="Print the recipe and train nothing.")
@request_words()
def train(words: Sequence[str], show: bool) -> int:
    """Exit code 1 when a training failed, 2 for a wrong request or a method that can't train."""
    from bench.request import compose, weights
    from bench.request.cell import Cell
    from bench.terminal import run_progress

    request = compose.compose(check_words(words))
    if request["recipe"] is None:
        raise RequestError("nothing to train: give recipe=NAME; bench ls recipes lists them")
    if show:
        for name, value in request["recipe"].items():
            print(f"recipe.{name:<16} {'null' if value is None else value}")
        return 0
    cell = Cell.of(request)
    rank = os.environ.get("RANK")  # set by accelerate's launcher and torchrun
    card = None if rank else weights.card(Path(cell.model["path"]))
    if not card:
        title = f"{cell.title}: {request['recipe']['name']}"
        if rank not in (None, "0"):
            _trained_here(cell, lambda *_: None)
            return 0
        with run_progress.progress(title) as progress:
            card = _trained_here(cell, progress) if rank else _trained_in_child(cell, progress)
    print(cell.model["path"])
    minutes = card["wall_ns"] / 60e9
    print(
        f"dev score {card['dev_score']:.4f} at step {card['best_step']:,} of "
        f"{card['steps']:,}; {minutes:.1f} minutes on {card['device']}",
        file=sys.stderr,
    )
    return 0


def _trained_in_child(cell: Cell, progress: Progress) -> dict[str, Any]:
    """The card of the cell's checkpoint. Raises RequestError, RunError."""
    from bench.execution import stages

    outcome = stages.train(cell, progress)
    if outcome.status == Status.UNSUPPORTED:
        raise RequestError((outcome.detail or "no reason given").partition("\n")[0])
    if outcome.status != Status.OK:
        raise RunError(f"{outcome.status} in training: {outcome.detail}")
    return outcome.result


def _trained_here(cell: Cell, progress: Progress) -> dict[str, Any]:
    """The card of the cell's checkpoint, trained together with the launcher's other processes."""
    from bench.execution import arms
    from bench.train.trainer import train
    from methods.parts.workload import Unsupported

    arms.prepare(cell)
    try:
        return train(cell, progress)
    except Unsupported as error:
        raise RequestError(str(error)) from error
