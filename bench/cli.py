"""The door: bench run | ls | results | compare | … Never imports torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import commands
from bench.errors import RequestError

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
  measure=quick         quick | standard | published | quality | speed
  probe=max_length      instead: the longest input that fits in memory
  results=results/runs  folder of the rows
  force=false           run a finished cell again
  deadline_s=3600       seconds after which a measurement is stopped
  method.NAME=…         a method's own parameter, such as method.k=8
  experiment=… launcher=…   recipes of conf/experiment and conf/launcher

  bench run method=vcc task=narrativeqa length=4096
  bench run -m method=vanilla,vcc length=1024,4096
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a run failed, 2 a wrong request, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["run"]:
            sys.exit(run(given[1:]))
        sys.exit(commands.run(given) if given and given[0] in commands.COMMANDS else other(given))
    except RequestError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(
            "bench: interrupted; finished work is kept, the same command goes on", file=sys.stderr
        )
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def run(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(RUN_HELP)
        return 0
    sweep = {"-m", "--multirun"} & set(arguments)
    overrides = [a for a in arguments if a not in ("-m", "--multirun")]
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
    from bench import runner, show
    from bench.cell import Cell
    from bench.store import StoreError

    cell = Cell.of(request)
    results = Path(request["results"]).expanduser().resolve()
    try:
        with show.progress(cell.title) as progress:
            row = runner.run(
                cell,
                results,
                force=request["force"],
                deadline_s=request["deadline_s"],
                progress=progress,
                command=command,
            )
    except StoreError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if row["reused"]:
        print(f"done on {row['created_utc']}; FORCE=1 (force=true) runs it again")
    show.row(row, results)
    return 0 if row["status"] in ("ok", "unsupported") else 1


def other(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench", description="Is this long-context method faster, smaller and as good?"
    )
    names = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    names.add_parser("run", help="run a cell or a sweep: bench run --help", add_help=False)
    listing = names.add_parser("ls", help="list methods, tasks, models, …")
    listing.add_argument("group", nargs="?", help="methods, tasks or models; all without it")
    fetch = names.add_parser("fetch", help="get a task's data or a model from the hub")
    fetch.add_argument("tasks", nargs="*", metavar="TASK")
    fetch.add_argument("--model", action="append", default=[], metavar="ORG/NAME")
    names.add_parser("host", help="this machine, and the smallest effect it can resolve")
    for name, (_, about) in commands.COMMANDS.items():
        names.add_parser(name, help=about, add_help=False)
    options = parser.parse_args(arguments)
    return {"ls": ls, "fetch": get, "host": machine}[options.command](options)


def ls(options: argparse.Namespace) -> int:
    """Names and what their YAML says of them."""
    from bench import plugins
    from bench.config import GROUPS
    from bench.errors import unknown

    plurals = {group if group == "data" else f"{group}s": group for group in GROUPS}
    chosen = options.group
    if chosen and chosen not in plurals and chosen not in GROUPS:
        raise unknown("list", chosen, plurals)
    groups = [plurals.get(chosen, chosen)] if chosen else ["method", "task", "model"]
    for group in groups:
        choices = plugins.available(group)
        print(f"{group}:" if len(groups) > 1 else "", end="\n" if len(groups) > 1 else "")
        width = max(map(len, choices), default=0)
        for name, path in choices.items():
            print(f"  {name:<{width}}  {plugins.about(path)}")
    return 0


def get(options: argparse.Namespace) -> int:
    """The only command that touches the network."""
    from bench import plugins
    from tasks.base import DataError

    if not options.tasks and not options.model:
        raise RequestError("fetch needs a TASK or --model ORG/NAME; bench ls tasks lists tasks")
    for name in options.tasks:
        task = plugins.build(plugins.conf("task", name))
        from tasks import sources

        try:
            path = sources.fetch(task)
        except DataError as error:
            raise RequestError(str(error)) from error
        print(f"{name}: {path}")
    for name in options.model:
        from huggingface_hub import snapshot_download

        conf = plugins.available("model")
        repo = plugins.conf("model", name)["path"] if name in conf else name
        wanted = ["*.json", "*.safetensors", "*.model", "*.txt"]
        print(f"{name}: {snapshot_download(repo, allow_patterns=wanted)}")
    return 0


def machine(options: argparse.Namespace) -> int:
    from bench import host

    for name, value in {
        **host.fingerprint(len(os.sched_getaffinity(0)), "cpu"),
        **host.certificate(),
    }.items():
        print(f"{name:<24} {value}")
    return 0


if __name__ == "__main__":
    main()
