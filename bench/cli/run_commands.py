"""The commands that run something: bench run | train."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import RequestError, RunError
from bench.status import Status
from bench.terminal.options import as_written, check_words, command, request_words

if TYPE_CHECKING:
    from bench.request.cell import Cell


WORTH_SAYING_S = 10.0
"""Work before the first stage that takes longer is announced."""


@command(as_written(Path(__file__).with_name("templates").joinpath("run_help.txt").read_text()))
@click.option("-m", "--multirun", is_flag=True, help="Run every combination of the values.")
@click.option("--details", is_flag=True, help="Show each figure of the row and each note.")
@request_words()
def run(words: Sequence[str], multirun: bool, details: bool) -> int:
    overrides = check_words(words)
    if multirun or any(word.startswith("launcher=") for word in words):
        from bench.cli.sweep_commands import run_sweep

        return run_sweep(overrides)
    from bench.execution import runner
    from bench.host.job import RUN_ID
    from bench.request import parameters
    from bench.request.cell import Cell
    from bench.request.compose import compose
    from bench.request.parameters import check_values
    from bench.sweep import job, log, plan
    from bench.sweep.estimate import Estimates
    from bench.terminal import row_table, run_progress, sweep_summary
    from bench.units import span

    request = compose(overrides)
    check_values(request)
    stream = log.EventStream(plan.events_path(request), RUN_ID)
    stream.check_writable()
    if (seconds := parameters.generating_s(request)) > WORTH_SAYING_S:
        print(f"generating rows: about {span(seconds)} …", file=sys.stderr)
    results = Path(request["results"]).expanduser().resolve()
    told = plan.without_events(overrides)
    called = shlex.join(["bench", "run", *told])
    began = time.monotonic()
    with job.one_cell(stream, told, command=called, launcher="local", results=str(results)):
        cell = Cell.of(request)
        with run_progress.progress(cell.title, Estimates([]).stages(cell)) as progress:
            row = runner.run(
                cell,
                results,
                force=request["force"],
                deadline_s=request["deadline_s"],
                progress=stream.following(0, progress),
                experiment=request["experiment"],
                share_prefill=request["share_prefill"],
            )
        outcome = replace(job.outcome_of(row), seconds=time.monotonic() - began)
        job.write_end(stream, 0, outcome)
        stream.exit_code = outcome.code
    if row["reused"]:
        print(f"done on {row['created_utc']}; FORCE=1 (force=true) runs it again")
    row_table.show(row, results, details)
    if line := sweep_summary.after_row(row, overrides):
        print(line)
    return Status(row["status"]).exit_code


@command(as_written(Path(__file__).with_name("templates").joinpath("train_help.txt").read_text()))
@click.option("--show", is_flag=True, help="Print the recipe and train nothing.")
@request_words()
def train(words: Sequence[str], show: bool) -> int:
    """Exit code 1 when a training failed, 2 for a wrong request or a method that can't train."""
    from bench.request import compose, weights
    from bench.request.cell import Cell

    request = compose.compose(check_words(words))
    if request["recipe"] is None:
        raise RequestError("nothing to train: give recipe=NAME; bench ls recipes lists them")
    if show:
        for name, value in request["recipe"].items():
            print(f"recipe.{name:<16} {'null' if value is None else value}")
        return 0
    cell = Cell.of(request)
    title = f"{cell.title}: {request['recipe']['name']}"
    if "RANK" in os.environ:  # set by accelerate's launcher and torchrun
        card = _train_in_this_process(cell, title)
        if os.environ["RANK"] != "0":
            return 0
    else:
        card = weights.card(Path(cell.model["path"])) or _train_in_child(cell, title)
    print(cell.model["path"])
    minutes = card["wall_ns"] / 60e9
    print(
        f"dev score {card['dev_score']:.4f} at step {card['best_step']:,} of "
        f"{card['steps']:,}; {minutes:.1f} minutes on {card['device']}",
        file=sys.stderr,
    )
    return 0


def _train_in_child(cell: Cell, title: str) -> dict[str, Any]:
    """The card of the cell's checkpoint. Raises RequestError, RunError."""
    from bench.execution import stages
    from bench.terminal import run_progress

    with run_progress.progress(title) as progress:
        outcome = stages.train(cell, progress)
    if outcome.status == Status.UNSUPPORTED:
        raise RequestError((outcome.detail or "no reason given").partition("\n")[0])
    if outcome.status != Status.OK:
        raise RunError(f"{outcome.status} in training: {outcome.detail}")
    return outcome.result


def _train_in_this_process(cell: Cell, title: str) -> dict[str, Any]:
    """The card of the cell's checkpoint, trained together with the launcher's other processes.
    Raises RequestError, RunError."""
    from bench.execution import arms
    from bench.terminal import run_progress
    from bench.train.train import train
    from methods.parts.errors import Unsupported

    arms.prepare(cell)
    try:
        if os.environ["RANK"] != "0":
            return train(cell, lambda *_: None)
        with run_progress.progress(title) as progress:
            return train(cell, progress)
    except Unsupported as error:
        raise RequestError(str(error)) from error
