"""The door: bench run, and the commands of bench.catalogue, bench.commands and
bench.reporting. No torch here."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import catalogue, commands, reporting, studies, sweep_commands
from bench.errors import RequestError, RunError, unknown
from bench.shards import StoreError

COMMANDS = (
    sweep_commands.COMMANDS
    | catalogue.COMMANDS
    | commands.COMMANDS
    | studies.COMMANDS
    | reporting.COMMANDS
)

RUN_HELP = """\
usage: bench run [-m] [NAME=VALUE …]

Runs one cell (or, with -m, every combination of comma-separated values) and stores a row.

  method=vcc            what is measured         bench ls methods
  task=narrativeqa      on which task            bench ls tasks
  model=embedded        in which model           bench ls models, a folder, or ORG/NAME of the hub
  data=embedded         rows: embedded | local (with data.dir=FOLDER) | hub (after bench fetch)
  length=4096           tokens of input
  n=32                  rows (null: all)
  batch=1               rows in one forward
  device=cpu            cpu | cuda | a100 | h200
  dtype=float32         float32 | bfloat16 | float16 | float64
  threads=null          CPU threads (null: every core this process may use)
  seed=0
  protocol=null         zero-shot | swap | finetune | from-scratch (null: what the model implies)
  recipe=null           how to train weights that aren't there    bench train --help
  measure=quick         quick | standard | published | quality | speed | glance | training
  probe=max_length      instead: the longest input that fits in memory
  results=results/runs  folder of the rows
  force=false           run a finished cell again
  deadline_s=3600       seconds after which a measurement is stopped
  method.NAME=…         a method's own parameter, such as method.k=8; in a sweep it reaches the
                        methods that have it
  experiment=NAME       overlays of conf/experiment      bench ls experiments
  scale=small           of an experiment of a paper: what two cores can do

With -m:
  launcher=local        one cell after the other; joblib: n_jobs=2 measure=quality at a time;
                        slurm: a cluster (docs/cluster.md)
  shard=2/8             the second of eight parts, for machines that share nothing
  budget=30m            coarse cells of all methods first, and none after that time

  bench run method=vcc task=narrativeqa length=4096
  bench run -m method=vanilla,vcc length=1024,4096      bench plan …: what that would do
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a run failed, 2 a wrong request, 130 interrupted."""
    code = answered(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None:
        # The answer is out; a Ctrl-C while the process tidies up changes nothing of it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def answered(given: Sequence[str]) -> int:
    """Run a command and tell what goes wrong with it. Returns the exit code."""
    try:
        if given[:1] == ["run"]:
            code = run(given[1:])
        elif given and given[0] in COMMANDS:
            code = COMMANDS[given[0]][0](given[1:])
        else:
            code = help_or_unknown(given)
        sys.stdout.flush()
        return code
    except (RunError, StoreError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except RequestError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "bench: interrupted; finished work is kept, the same command goes on", file=sys.stderr
        )
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(RUN_HELP)
        return 0
    overrides = [a for a in arguments if a not in ("-m", "--multirun")]
    # A launcher is Hydra's for sweeps; of one cell it makes a sweep of one.
    sweep = len(overrides) < len(arguments) or any(a.startswith("launcher=") for a in overrides)
    stray = [a for a in overrides if a.startswith("-") or ("=" not in a and not a.startswith("~"))]
    if stray:
        raise RequestError(
            f"can't read '{stray[0]}': a request is made of NAME=VALUE; see bench run --help"
        )
    if sweep:
        from bench.sweep import run_sweep

        return run_sweep(overrides)
    from bench import config

    return run_request(config.compose(overrides), f"bench run {' '.join(overrides)}".strip())


def run_request(request: dict[str, Any], command: str) -> int:
    """Run the cell of one composed request and show its row. Returns the exit code."""
    return exit_code(run_row(request, command))


def run_row(request: dict[str, Any], command: str) -> dict[str, Any]:
    """Run the cell of one composed request, show its row and return it."""
    from bench import runner, show
    from bench.cell import Cell

    cell = Cell.of(request)
    results = Path(request["results"]).expanduser().resolve()
    with show.progress(cell.title) as progress:
        row = runner.run(
            cell,
            results,
            force=request["force"],
            deadline_s=request["deadline_s"],
            progress=progress,
            command=command,
        )
    if row["reused"]:
        print(f"done on {row['created_utc']}; FORCE=1 (force=true) runs it again")
    show.row(row, results)
    return row


def exit_code(row: dict[str, Any]) -> int:
    return 0 if row["status"] in ("ok", "unsupported") else 1


def help_or_unknown(arguments: Sequence[str]) -> int:
    """`bench`, `bench --help`, or a word that is no command."""
    parser = argparse.ArgumentParser(
        prog="bench", description="Is this long-context method faster, smaller and as good?"
    )
    names = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    names.add_parser("run", help="run a cell or a sweep: bench run --help", add_help=False)
    for name, (_, about) in COMMANDS.items():
        names.add_parser(name, help=about, add_help=False)
    if arguments and not arguments[0].startswith("-"):
        raise unknown("command", arguments[0], ["run", *COMMANDS])
    parser.parse_args(arguments)
    return 0


if __name__ == "__main__":
    main()
