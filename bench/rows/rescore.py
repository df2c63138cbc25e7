"""Scores from stored predictions: for a repaired metric, and to pair the samples of two rows."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError, errors_of
from bench.request.cell import Cell, asked, load_rows, task_of
from bench.rows import derived_columns
from bench.rows.columns import Row
from bench.rows.shards import utc_now
from bench.rows.store import PREDICTIONS, Predictions

SAMPLES_FOLLOW = ("task", "data", "n", "length", "seed", "turns", "skip_unanswerable")
"""The parts of a cell from which its samples follow."""


class OtherPredictions(RequestError):
    """The stored predictions aren't those from which the row was scored."""


def metric_version(row: Mapping[str, Any]) -> str:
    """The current version of the row's metric. Raises RequestError."""
    return str(task_of(_cell(row)["task"]).metric_version)


def rescored(row: Row, results: Path) -> Row:
    """A new row: this one with its `quality` computed again. Raises RequestError."""
    new: Row = {"row_id": uuid.uuid4().hex, "created_utc": utc_now().isoformat(timespec="seconds")}
    return {**row, **quality(row, results), **new}


def quality(row: Row, results: Path) -> Row:
    """The quality columns of a row by the current metric.

    Vanilla is rescored too if the row has its score. `results` holds the predictions. Raises
    RequestError when they or the task's rows are missing or have changed.
    """
    ids = [sample.id for sample in _samples(row)]
    arms = ["", "base_"] if row["base_value"] is not None else [""]
    keys = [_folder(row, results, ids, arm).name for arm in arms]
    cell = Cell.from_json(row["cell"] or "{}")
    with errors_of(f"task {cell.task['name']}", cell.task["target"]):
        return derived_columns.quality(cell, results, keys)


def scores(row: Mapping[str, Any], results: Path) -> dict[Any, float]:
    """Sample → score by the current metric. A sample is a whole row of the task, so that two
    texts under one id are never paired. Raises RequestError."""
    samples = _samples(row)
    folder = _folder(row, results, [sample.id for sample in samples], "")
    done = Predictions(folder.parent, folder.name).done()
    answers = [done[sample.id]["prediction"] for sample in samples]
    references = [sample.references for sample in samples]
    _, each = derived_columns.scored(task_of(_cell(row)["task"]), answers, references)
    return dict(zip(samples, each, strict=True))


def _cell(row: Mapping[str, Any]) -> dict[str, Any]:
    if not row["cell"]:
        raise RequestError("the row doesn't hold its cell: it was stored by an older version")
    cell: dict[str, Any] = json.loads(row["cell"])
    return cell


def _samples(row: Mapping[str, Any]) -> Sequence[Any]:
    cell = _cell(row)
    return _loaded(json.dumps({name: cell[name] for name in SAMPLES_FOLLOW if name in cell}))


@functools.lru_cache(maxsize=8)
def _loaded(request: str) -> Sequence[Any]:
    given = json.loads(request)
    loaded = load_rows(given)
    if loaded.sha256 != given["data"]["sha256"]:
        source = given["data"]["source"]
        raise RequestError(f"the {source} rows of the task are not those it was run on")
    return asked(loaded.rows, given.get("turns", 1))


def _folder(row: Mapping[str, Any], results: Path, ids: list[str], arm: str) -> Path:
    """The folder of the predictions with the row's hash: the folder named by the row; vanilla's,
    which the row doesn't name, is found by a search."""
    wanted = row[f"{arm}predictions_sha256"]
    path = Path(row["predictions_path"] or PREDICTIONS)
    if path.is_absolute() or ".." in path.parts:
        raise OtherPredictions(f"predictions_path '{path}' leads out of the folder")
    stored = results / path
    folders = sorted((results / PREDICTIONS).glob("*")) if arm else [stored]
    for folder in filter(Path.is_dir, folders):
        if wanted and _sha256(folder, frozenset(ids), folder.stat().st_mtime_ns) == wanted:
            return folder
    if arm:
        raise RequestError(f"vanilla's predictions are missing in {results / PREDICTIONS}")
    predictions = Predictions(stored.parent, stored.name)
    predictions.done()
    if not stored.is_dir():
        raise RequestError(f"its predictions are missing: {stored}")
    text = f"its predictions are no longer those of the row: {stored}"
    raise OtherPredictions("; ".join([text, *predictions.warnings]))


@functools.cache
def _sha256(folder: Path, ids: frozenset[str], changed_ns: int) -> str:
    """Cached, since many rows search the same folders; `changed_ns` invalidates a changed one."""
    return Predictions(folder.parent, folder.name).sha256(ids)
