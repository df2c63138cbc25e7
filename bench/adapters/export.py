"""The targets of exports of rows, each a function of a module that is imported at its first use;
CSV, JSON lines and experiment trackers are here.

A function takes the rows and the path to write to, and returns a line that names the files it
wrote. Raises RequestError.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import RequestError
from bench.files import check_own, record, write_own
from bench.rows.columns import COLUMNS, Row, value_of
from bench.units import counted, finite

Writer = Callable[[list[Row], Path], str]


class Target(NamedTuple):
    """`writer` is its function, `into` the kind of output, `about` describes the content."""

    writer: str
    into: str
    about: str


TARGETS = {
    "csv": Target("bench.adapters.export:write_csv", "FILE", "a spreadsheet's lines; no lists"),
    "jsonl": Target("bench.adapters.export:write_jsonl", "FILE", "every column, as JSON lines"),
    "every_eval_ever": Target(
        "bench.adapters.scores:write_every_eval_ever", "DIR", "a record for each cell, schema 0.3.0"
    ),
    "hf-eval-results": Target(
        "bench.adapters.scores:write_eval_results", "DIR",
        ".eval_results/*.yaml of models of the hub",
    ),
    "mlflow": Target("bench.adapters.export:write_mlflow", "DIR", "runs in DIR/mlflow.db"),
    "wandb": Target("bench.adapters.export:write_wandb", "DIR", "offline runs, for wandb sync"),
}  # fmt: skip


def export(name: str, rows: list[Row], into: Path) -> str:
    """Writes the rows to a target, in a file or folder that is new, empty or from an earlier
    export. Raises RequestError."""
    from bench.request import plugins

    writer: Writer = plugins.load(TARGETS[name].writer)
    check_own(into)
    try:
        return writer(rows, into)
    except OSError as error:
        raise RequestError(f"--into {into}: {error}") from error


# Rows as CSV for spreadsheets and as JSON lines for programs.


def write_csv(rows: Sequence[Row], into: Path) -> str:
    """A line of names and a line for each row, without the columns that hold lists. Text that a
    spreadsheet would run as a formula begins with an apostrophe; numbers stay numbers."""
    from bench.rows.store import LIGHT

    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(LIGHT)
    for row in rows:
        values = [value_of(row, name) for name in LIGHT]
        words = [str(value).lower() if isinstance(value, bool) else value for value in values]
        writer.writerow([f"'{word}" if _is_formula(word) else word for word in words])
    write_own(into, buffer.getvalue().encode())
    return f"{into}: {counted(len(rows), 'row')}"


def write_jsonl(rows: Sequence[Row], into: Path) -> str:
    """An object for each row, with every column: JSON columns as objects, and null for values that
    weren't measured or aren't finite, which JSON can't express."""
    lines = []
    for row in rows:
        values = {name: value_of(row, name) for name in COLUMNS}
        for name, value in values.items():
            is_json = COLUMNS[name].type == "json" and value is not None
            values[name] = finite(json.loads(value) if is_json else value)
        lines.append(json.dumps(values, ensure_ascii=False))
    write_own(into, "".join(f"{line}\n" for line in lines).encode())
    return f"{into}: {counted(len(lines), 'row')}"


def _is_formula(value: Any) -> bool:
    """Whether a spreadsheet would run it."""
    text = value if isinstance(value, str) else ""
    return text.lstrip()[:1] in {*"=+-@"} or text[:1] in {*"\t\r\n"}


# Rows as runs of an experiment tracker, through its own client and into a folder: nothing is sent
# anywhere. A run's parameters are the row's texts, its metrics the row's numbers.

PROJECT = "longctx-bench"
LONGEST = 500
"""Characters of a parameter that every version of MLflow takes."""


def write_wandb(rows: list[Row], into: Path) -> str:
    """Offline runs, which `wandb sync` sends; a row that has one already is left out."""
    _check_installed("wandb")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    record(into)
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
    new = [r for r in rows if not any(into.glob(f"wandb/*-run-*-{r['row_id']}"))]
    for row in new:
        numbers, texts = _split(row)
        run = wandb.init(
            project=PROJECT, id=row["row_id"], name=_title(row), dir=str(into),
            mode="offline", config=texts, settings=quiet,
        )  # fmt: skip
        run.summary.update(numbers)
        run.finish(exit_code=0 if row["status"] == "ok" else 1)
    return (
        f"{into}: {len(new)} runs, {len(rows) - len(new)} already there; "
        f"wandb sync {into}/wandb/offline-run-* sends them"
    )


def write_mlflow(rows: list[Row], into: Path) -> str:
    """Runs of a local store in SQLite; a row that has one already is left out."""
    _check_installed("mlflow", "sqlalchemy", "alembic")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    record(into)
    folder = into.resolve()
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name(PROJECT)
    number = (
        experiment.experiment_id
        if experiment
        else client.create_experiment(PROJECT, artifact_location=(folder / "artifacts").as_uri())
    )
    added = 0
    for row in rows:
        if client.search_runs([number], f"tags.row_id = '{row['row_id']}'", max_results=1):
            continue
        numbers, texts = _split(row)
        ms = int(datetime.fromisoformat(row["created_utc"]).timestamp() * 1000)
        tags = {"row_id": row["row_id"], "status": row["status"]}
        run = client.create_run(number, start_time=ms, tags=tags, run_name=_title(row))
        client.log_batch(
            run.info.run_id,
            [Metric(name, float(value), ms, 0) for name, value in numbers.items()],
            [Param(name, text[:LONGEST]) for name, text in texts.items()],
        )
        ended = "FINISHED" if row["status"] == "ok" else "FAILED"
        client.set_terminated(run.info.run_id, ended, end_time=ms)
        added += 1
    return (
        f"{into}: {added} runs, {len(rows) - added} already there; "
        f"mlflow ui --backend-store-uri sqlite:///{folder}/mlflow.db shows them"
    )


def _check_installed(*packages: str) -> None:
    if any(importlib.util.find_spec(package) is None for package in packages):
        raise RequestError(
            f"--to {packages[0]} needs its client, which isn't installed: pip install {packages[0]}"
        )


def _title(row: Row) -> str:
    return f"{row['method']} {row['task']} {row['model']} {row['length']}"


def _split(row: Row) -> tuple[dict[str, float], dict[str, str]]:
    """A row's finite numbers, and its other values as text; the cell, which repeats them all, is
    left out."""
    from bench.rows.store import LIGHT

    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name in LIGHT:
        value: Any = finite(value_of(row, name))
        if value is None or name == "cell":
            continue
        if COLUMNS[name].type in ("int64", "float64"):
            numbers[name] = value
        else:
            texts[name] = str(value)
    return numbers, texts
