"""What rows can be exported to, each a function of a module that is imported when it is asked for.

A function takes the rows, where to write and the folder that they were read from, and returns a
line that names the files it wrote. Raises RequestError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import files
from bench.errors import RequestError, unknown
from bench.request import plugins
from bench.rows.columns import Row

Writer = Callable[[list[Row], Path, Path], str]


class Target(NamedTuple):
    """`writer` is its function, `into` what it writes, `about` what is in it."""

    writer: str
    into: str
    about: str


TARGETS = {
    "csv": Target("bench.adapters.tables:write_csv", "FILE", "a spreadsheet's lines; no lists"),
    "jsonl": Target("bench.adapters.tables:write_jsonl", "FILE", "every column, as JSON lines"),
    "every_eval_ever": Target(
        "bench.adapters.every_eval_ever:write", "DIR", "a record for each cell, schema 0.3.0"
    ),
    "hf-eval-results": Target(
        "bench.adapters.hf_eval_results:write", "DIR", ".eval_results/*.yaml of models of the hub"
    ),
    "mlflow": Target("bench.adapters.trackers:write_mlflow", "DIR", "runs in DIR/mlflow.db"),
    "wandb": Target("bench.adapters.trackers:write_wandb", "DIR", "offline runs, for wandb sync"),
}  # fmt: skip


def export(name: str, rows: list[Row], into: Path, results: Path) -> str:
    """Writes the rows to a target, in a file or folder that is new, empty or from an earlier
    export. Raises RequestError, also for an unknown name."""
    chosen = target(name)
    writer: Writer = plugins.load(chosen.writer)
    files.check_own(into)
    try:
        return writer(rows, into, results)
    except OSError as error:
        raise RequestError(f"--into {into}: {error}") from error


def target(name: str) -> Target:
    """Raises RequestError with the nearest name."""
    if name not in TARGETS:
        raise unknown("target of export", name, TARGETS)
    return TARGETS[name]
