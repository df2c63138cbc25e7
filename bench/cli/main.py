"""The command line: finds a command by its name, and turns errors into exit codes.

A command's module is imported when it is called, so that the quick ones load no torch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.cli.commands import COMMANDS, overview
from bench.errors import (
    TRACEBACK,
    RequestError,
    RunError,
    described,
    print_traceback,
    unknown,
)
from bench.request import limits, plugins
from bench.request.other_names import not_a_word
from bench.status import Status
from bench.terminal import streams
from bench.units import span

WORTH_SAYING_S = 10.0
"""Work before the first stage that takes longer is announced."""

DRAWN_BY_OTHERS = (["fetch"], ["lm_eval"], ["train"])
"""Commands that show progress bars of other libraries."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a run failed, 2 a wrong request, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    streams.accept_any_text(clean_errors=words[:1] not in DRAWN_BY_OTHERS)
    code = dispatch(words)
    if arguments is None:
        # All output is written: Ctrl-C while the interpreter shuts down must not change the code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command, and print what went wrong with it in one line. Returns the exit code."""
    code, message = _outcome(arguments)
    with contextlib.suppress(OSError):
        if message:
            print(f"bench: {streams.clean(message)}", file=sys.stderr)
    if not (problem := streams.flush()):
        return code
    if not isinstance(problem, BrokenPipeError):
        with contextlib.suppress(OSError):
            reason = problem.strerror
            print(f"bench: can't write the output: {reason}", file=sys.stderr, flush=True)
    return code or 1


def _outcome(arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command, and what went wrong with it."""
    try:
        if arguments and arguments[0] in COMMANDS:
            command = plugins.load(COMMANDS[arguments[0]])
            return int(command(arguments[1:])), ""
        return help_or_unknown(arguments), ""
    except KeyboardInterrupt:
        return 130, "interrupted; finished work is kept, the same command resumes"
    except BrokenPipeError:
        return 1, ""
    except Exception as error:
        print_traceback()
        if isinstance(error, (RequestError, RunError)):
            return 2 if isinstance(error, RequestError) else 1, str(error)
        if isinstance(error, OSError):
            named = f"{error.filename}: " if error.filename else ""
            return 1, f"{named}{error.strerror or error}"
        return 1, f"{described(error)}; {TRACEBACK}=1 shows the traceback"


def run(arguments: Sequence[str]) -> int:
    """One cell, or with -m or launcher= a sweep."""
    if {"-h", "--help"} & set(arguments):
        print(Path(__file__).with_name("templates").joinpath("run_help.txt").read_text())
        return 0
    overrides = [a for a in arguments if a not in ("-m", "--multirun")]
    sweep = len(overrides) < len(arguments) or any(a.startswith("launcher=") for a in overrides)
    stray = [a for a in overrides if a.startswith("-") or ("=" not in a and not a.startswith("~"))]
    if stray:
        raise not_a_word(stray[0])
    if sweep:
        from bench.cli.sweep_commands import run_sweep

        return run_sweep(overrides)
    from bench.execution import runner
    from bench.host.job import RUN_ID
    from bench.request.cell import Cell
    from bench.request.compose import compose
    from bench.request.values import check_values
    from bench.sweep import events, job
    from bench.sweep.estimate import Estimates
    from bench.terminal import next_steps, row_table, run_progress

    request = compose(overrides)
    check_values(request)
    stream = events.EventStream(events.path_of(request), RUN_ID)
    stream.check_writable()
    if (seconds := limits.generating_s(request)) > WORTH_SAYING_S:
        print(f"generating rows: about {span(seconds)} …", file=sys.stderr)
    results = Path(request["results"]).expanduser().resolve()
    command = shlex.join(["bench", "run", *(words := events.without(overrides))])
    began = time.monotonic()
    with job.one_cell(stream, words, command=command, launcher="local", results=str(results)):
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


def help_or_unknown(arguments: Sequence[str]) -> int:
    """`bench`, `bench --help`, `bench --version`, or an unknown command."""
    first = arguments[0] if arguments else "--help"
    if first in ("-V", "--version"):
        print(f"longctx-bench {importlib.metadata.version('longctx-bench')}")
    elif first in ("-h", "--help", "help"):
        print(overview())
    else:
        raise unknown("command", first, COMMANDS)
    return 0
