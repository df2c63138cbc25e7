"""The command line: finds a command by its name, and turns errors into exit codes.

A command's module is imported when it is called, so that the quick ones load no torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.errors import RequestError, RunError, described, unknown
from bench.request import limits, plugins
from bench.status import Status
from bench.terminal import streams
from bench.units import span

WORTH_SAYING_S = 10.0
"""Work before the first stage that takes longer is announced."""

COMMANDS = {
    "run": ("bench.cli.main:run", "run a cell or a sweep: bench run --help"),
    "plan": ("bench.cli.sweep_commands:plan", "what a sweep would do, how long, what is done"),
    "status": ("bench.cli.sweep_commands:status", "how far sweeps are: queue and store together"),
    "ls": ("bench.cli.list_command:ls", "list methods, tasks, models, …"),
    "train": ("bench.cli.train_command:train", "train a method's weights, or find them"),
    "fetch": ("bench.cli.inspect_commands:fetch", "download a task's data or a model"),
    "check": ("bench.cli.inspect_commands:check", "does a method or a task keep its contract?"),
    "new": ("bench.cli.inspect_commands:new", "write the files of a new method or task"),
    "score": ("bench.cli.inspect_commands:score", "score anyone's predictions"),
    "export": ("bench.cli.inspect_commands:export", "write the official submission file"),
    "host": ("bench.cli.inspect_commands:host", "this machine, and the smallest effect it shows"),
    "results": ("bench.cli.row_commands:results", "list rows; results merge | check | migrate"),
    "rescore": ("bench.cli.row_commands:rescore", "score stored predictions by today's metric"),
    "compare": ("bench.cli.compare_commands:compare", "is B better than A, and how sure?"),
    "explain": ("bench.cli.compare_commands:explain", "what differs between two rows"),
    "verify": ("bench.cli.compare_commands:verify", "measure a row again on this machine"),
    "submit-check": (
        "bench.cli.compare_commands:submit_check", "check a contributed folder of rows"
    ),
    "recall": ("bench.cli.study_commands:recall", "recall of k-NN searches against their time"),
    "spectrum": (
        "bench.cli.study_commands:spectrum", "power spectrum of a model's hidden states"
    ),
    "report": ("reports.papers.command:report", "the papers' tables beside what was measured"),
    "plot": ("reports.figures.command:plot", "draw figures of stored rows"),
    "leaderboard": ("reports.leaderboard.command:leaderboard", "rows as one HTML page, ranked"),
}  # fmt: skip
"""Command → the function behind it, and what it is for."""
TRACEBACK = "BENCH_TRACEBACK"
"""Environment variable: set, an error is printed with its traceback, for who writes a plugin."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a run failed, 2 a wrong request, 130 interrupted."""
    streams.accept_any_text()
    code = dispatch(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None:
        # All output is written: Ctrl-C while the interpreter shuts down must not change the code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command, and print what went wrong with it in one line. Returns the exit code."""
    code, message = _outcome(arguments)
    with contextlib.suppress(OSError):
        if message:
            print(f"bench: {message}", file=sys.stderr)
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
            command = plugins.load(COMMANDS[arguments[0]][0])
            return int(command(arguments[1:])), ""
        return help_or_unknown(arguments), ""
    except KeyboardInterrupt:
        return 130, "interrupted; finished work is kept, the same command resumes"
    except BrokenPipeError:
        return 1, ""
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
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
        raise RequestError(
            f"can't read '{stray[0]}': a request is made of NAME=VALUE; see bench run --help"
        )
    if sweep:
        from bench.cli.sweep_commands import run_sweep

        return run_sweep(overrides)
    from bench.execution import runner
    from bench.request.cell import Cell
    from bench.request.compose import check_values, compose
    from bench.terminal import row_table

    request = compose(overrides)
    check_values(request)
    if (seconds := limits.generating_s(request)) > WORTH_SAYING_S:
        print(f"generating rows: about {span(seconds)} …", file=sys.stderr)
    cell = Cell.of(request)
    results = Path(request["results"]).expanduser().resolve()
    with row_table.progress(cell.title) as progress:
        row = runner.run(
            cell,
            results,
            force=request["force"],
            deadline_s=request["deadline_s"],
            progress=progress,
            command=shlex.join(["bench", "run", *overrides]),
        )
    if row["reused"]:
        print(f"done on {row['created_utc']}; FORCE=1 (force=true) runs it again")
    row_table.show(row, results)
    return Status(row["status"]).exit_code


def help_or_unknown(arguments: Sequence[str]) -> int:
    """`bench`, `bench --help`, or an unknown command."""
    parser = argparse.ArgumentParser(
        prog="bench", description="Is this long-context method faster, smaller and as good?"
    )
    names = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, about) in COMMANDS.items():
        names.add_parser(name, help=about, add_help=False)
    if arguments and not arguments[0].startswith("-"):
        raise unknown("command", arguments[0], COMMANDS)
    parser.parse_args(arguments)
    return 0
