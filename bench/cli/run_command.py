"""bench run: one cell, or a sweep."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from bench.status import Status
from bench.terminal.options import as_written, check_words, command, request_words

WORTH_SAYING_S = 10.0
"""Work before the first stage that takes longer is announced."""


@command(as_written(Path(__file__).with_name("templates").joinpath("run_help.txt").read_text()))
@click.option("-m", "--multirun", is_flag=True, help="Run every combination of the values.")
@request_words()
def run(words: Sequence[str], multirun: bool) -> int:
    overrides = check_words(words)
    if multirun or any(word.startswith("launcher=") for word in words):
        from bench.cli.sweep_commands import run_sweep

        return run_sweep(overrides)
    from bench.execution import runner
    from bench.host.job import RUN_ID
    from bench.request import values
    from bench.request.cell import Cell
    from bench.request.compose import compose
    from bench.request.values import check_values
    from bench.sweep import events, job
    from bench.sweep.estimate import Estimates
    from bench.terminal import next_steps, row_table, run_progress
    from bench.units import span

    request = compose(overrides)
    check_values(request)
    stream = events.EventStream(events.path_of(request), RUN_ID)
    stream.check_writable()
    if (seconds := values.generating_s(request)) > WORTH_SAYING_S:
        print(f"generating rows: about {span(seconds)} …", file=sys.stderr)
    results = Path(request["results"]).expanduser().resolve()
    told = events.without(overrides)
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
            )
        outcome = replace(job.outcome_of(row), seconds=time.monotonic() - began)
        job.write_end(stream, 0, outcome)
        stream.exit_code = outcome.code
    if row["reused"]:
        print(f"done on {row['created_utc']}; FORCE=1 (force=true) runs it again")
    row_table.show(row, results)
    if line := next_steps.after_row(row, overrides):
        print(line)
    return Status(row["status"]).exit_code
