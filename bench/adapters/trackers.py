"""Rows as runs of an experiment tracker, through its own client and into a folder: nothing is sent
anywhere. A run's parameters are the row's texts, its metrics the row's numbers."""

from __future__ import annotations

import importlib.util
import math
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.files import record
from bench.rows.columns import COLUMNS, Row, value_of
from bench.rows.store import LIGHT

PROJECT = "longctx-bench"
LONGEST = 500
"""Characters of a parameter that every version of MLflow takes."""


def write_wandb(rows: list[Row], into: Path, results: Path) -> str:
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


def write_mlflow(rows: list[Row], into: Path, results: Path) -> str:
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
    """A row's finite numbers, and its other values as text; the cell, which has them all again, is
    left out."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name in LIGHT:
        value: Any = value_of(row, name)
        if value is None or name == "cell":
            continue
        if COLUMNS[name].type in ("int64", "float64"):
            if math.isfinite(value):
                numbers[name] = value
        else:
            texts[name] = str(value)
    return numbers, texts
