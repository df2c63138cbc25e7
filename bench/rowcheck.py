"""Whether a row is consistent in itself: what follows from what, without measuring anything."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from bench import judge, rescore, verify
from bench.cell import Cell
from bench.columns import COLUMNS
from bench.rows import Row
from bench.store import PREDICTIONS

Fault = tuple[Literal["wrong", "look"], str]

NEEDED = (
    "row_id", "cell_key", "cell", "created_utc", "method", "task", "model", "weights_kind",
    "data_source", "length", "batch", "dtype", "device", "threads", "seed", "status", "command",
    "host_id",
)  # fmt: skip
INTERVALS = (
    ("value", "ci_lo", "ci_hi"), ("ratio", "ratio_ci_lo", "ratio_ci_hi"),
    ("value_diff", "value_diff_ci_lo", "value_diff_ci_hi"),
)  # fmt: skip
SCORES = ("value", "base_value")
SAMPLES = ("lat_samples_ns", "base_samples_ns", "aa_first_samples_ns", "aa_second_samples_ns")
LATER = ("aa_verdict", "n_processes")
"""Figures that rows of older versions lack."""


def faults(row: Row, folder: Path) -> Iterator[Fault]:
    """What is wrong with a row of a folder, and what a person should look at."""
    missing = [name for name in NEEDED if row[name] is None]
    if missing:
        yield "wrong", f"lacks {', '.join(missing)}"
        return
    yield from _words(row)
    strange = list(_cell(row))
    yield from strange
    yield from _ranges(row)
    yield from _derived(row)
    if not strange:
        yield from _score(row, folder)
    if not row["code_sha"]:
        yield "wrong", "doesn't name the commit of its code: measure in a git checkout"
    if row["code_dirty"]:
        yield "wrong", "measured with uncommitted changes: commit them and measure again"
    if row["noisy"]:
        yield "look", f"noisy host: {row['noise_reason']}"


def _words(row: Row) -> Iterator[Fault]:
    for name, column in COLUMNS.items():
        if column.values and row[name] is not None and row[name] not in column.values:
            yield "wrong", f"{name} is '{row[name]:.40}'; accepted: {', '.join(column.values)}"


def _cell(row: Row) -> Iterator[Fault]:
    """The key is the hash of the cell, and the columns say what the cell says."""
    try:
        cell = Cell.from_json(row["cell"])
        told = cell.columns
        key, strange = cell.key, verify.strange_code(json.loads(row["cell"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        yield "wrong", f"its cell can't be read: {error}"
        return
    if strange:
        yield "wrong", strange
    if key != row["cell_key"]:
        yield "wrong", f"cell_key {row['cell_key'][:12]} isn't the hash of its cell, {key[:12]}"
    for name, value in told.items():
        if row[name] != value:
            yield "wrong", f"{name} is {row[name]!r:.40}, its cell says {value!r:.40}"


def _ranges(row: Row) -> Iterator[Fault]:
    for middle, lo, hi in INTERVALS:
        if None not in (values := (row[lo], row[middle], row[hi])) and not _ordered(*values):
            yield "wrong", f"{middle}={row[middle]:g} lies outside its interval"
    for name in SCORES:
        if row[name] is not None and not 0 <= row[name] <= 100:
            yield "wrong", f"{name}={row[name]:g}; a score lies in 0…100"
    for name, column in COLUMNS.items():
        value = row[name]
        counted = name.endswith(("_ns", "_bytes")) and column.type == "int64"
        if counted and value is not None and value < 0:
            yield "wrong", f"{name}={value} is negative"
        if name.endswith("ratio") and value is not None and not value > 0:
            yield "wrong", f"{name}={value:g}; a ratio is above 0"
    if (row["n_scored"] or 0) > (row["n_samples_planned"] or math.inf):
        yield "wrong", f"{row['n_scored']} samples scored of {row['n_samples_planned']} planned"
    try:
        created = datetime.fromisoformat(row["created_utc"])
        if created.astimezone(UTC) > datetime.now(UTC) + timedelta(days=1):
            yield "wrong", f"created_utc {row['created_utc']} is in the future"
    except ValueError:
        yield "wrong", f"created_utc is '{row['created_utc']:.40}', expected ISO 8601"


def _ordered(lo: float, middle: float, hi: float) -> bool:
    return lo - 1e-9 <= middle <= hi + 1e-9


def _derived(row: Row) -> Iterator[Fault]:
    """Medians, ratio, interval and verdict follow from the raw samples."""
    if row["ratio"] is not None and not (row["lat_samples_ns"] and row["base_samples_ns"]):
        yield "wrong", "has a ratio and not the samples it was formed of"
        return
    if not row["lat_samples_ns"]:
        return
    samples: dict[str, Any] = {name: row[name] or [] for name in SAMPLES}
    samples["pair_process"] = row["pair_process"]
    try:
        again = judge.latency(samples, row["seed"])
    except ValueError as error:
        yield "wrong", f"its samples can't be judged: {error}"
        return
    for name, value in again.items():
        added_later = row[name] is None and name in LATER
        if not added_later and not _same(row[name], value):
            yield "wrong", f"{name} is {row[name]}, its samples say {value}"


def _same(stored: Any, again: Any) -> bool:
    if isinstance(stored, float) and isinstance(again, float):
        return math.isclose(stored, again, rel_tol=1e-6)
    return bool(stored == again)


def _score(row: Row, folder: Path) -> Iterator[Fault]:
    """The score follows from the predictions, where they and the task's rows are at hand."""
    if row["value"] is None:
        return
    place = (folder / (row["predictions_path"] or PREDICTIONS)).resolve()
    if not place.is_relative_to(folder.resolve()):
        yield "wrong", f"predictions_path '{row['predictions_path']:.60}' leads out of the folder"
        return
    if not place.is_dir():
        yield "look", "its predictions aren't in the folder, so its score can't be checked"
        return
    try:
        again = rescore.rescored(row, folder)["value"]
    except rescore.ScoreError as error:
        yield "look", f"can't be scored again here: {error}"
        return
    if not math.isclose(row["value"], again, abs_tol=1e-3):
        yield "wrong", f"value is {row['value']:g}, its predictions score {again:g}"
