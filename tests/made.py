"""Rows like those stored by a run, made without running anything."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

import bench
from bench.compare import submission
from bench.execution import runner
from bench.request import plugins
from bench.request.cell import Cell
from bench.rows import derived_columns
from bench.rows.columns import COLUMNS, Row
from bench.rows.comparison import TIMED, Comparison
from bench.rows.store import Predictions, Store

_made = itertools.count()


def timing(
    ratio: float = 1.0, pairs: int = 40, noise: float = 0.01, seed: int = 0, processes: int = 4
) -> dict[str, Any]:
    """Latency columns of a method whose true ratio to vanilla is `ratio`, in every process."""
    random = np.random.default_rng(seed)
    base = 1e8 * np.exp(random.normal(0, noise, pairs))
    mine = 1e8 * ratio * np.exp(random.normal(0, noise, pairs))
    first, second = 1e8 * np.exp(random.normal(0, noise, (2, 20)))
    samples = {"": mine, "base_": base, "aa_first_": first, "aa_second_": second}
    columns = {f"lat_{arm}samples_ns": x.round().astype(int).tolist() for arm, x in samples.items()}
    columns["lat_pair_process"] = [i * processes // pairs for i in range(pairs)]
    return columns | times(columns, seed)


def times(columns: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """The columns of all comparisons that follow from measured ones."""
    raw = {name: Comparison.of(columns, name).measured for name in TIMED}
    found = derived_columns.times(raw, columns, seed)
    return {name: value for name, value in found.items() if value is not None}


def row(**more: Any) -> dict[str, Any]:
    """A row of every key column; `more` replaces them."""
    number = next(_made)
    time = f"{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}"
    columns = {
        "row_id": f"{number:04x}" + "0" * 28,
        "cell_key": f"cell-{number}",
        "created_utc": f"2026-11-20T{time}+00:00",
        "status": "ok", "method": "vcc", "method_params": "{}", "benchmark": "scrolls",
        "task": "narrativeqa", "task_version": "1", "split": "validation",
        "data_source": "embedded", "dataset_sha256": "d" * 64, "n_samples_planned": 4,
        "model": "embedded", "weights_kind": "embedded", "weights_sha256": "e" * 64,
        "length": 512, "batch": 1, "dtype": "float32", "device": "cpu", "threads": 2, "seed": 0,
        "new_tokens": None,
        "measure": "quick", "host_id": "here", "noisy": False, "mem_method": "VmHWM",
        "rss_peak_delta_bytes": 100 << 20,
    }  # fmt: skip
    return columns | more


def full(**more: Any) -> dict[str, Any]:
    """The same row as read from a store: with every column."""
    return dict.fromkeys(COLUMNS) | row(**more)


def sample_faults(row: dict[str, Any]) -> list[str]:
    """The columns of a row that don't follow from its samples."""
    derived = {of: found for of, found in submission.MEASURED.items() if "samples" in of}
    faults, _ = submission.differences(cast(Row, row), Path(), derived)
    return [text for _, text in faults]


def checkpoint(folder: Path) -> Path:
    """The parts of a checkpoint that a cell needs: files to hash."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def answered(results: Path, model: Path, right: Sequence[bool], base: Sequence[bool] | None,
             *words: str, **more: Any) -> dict[str, Any]:  # fmt: skip
    """Store a row with predictions of the method and of vanilla, right or wrong as given."""
    cell = bench.compose(f"model={model}", "length=512", f"n={len(right)}", "threads=1", *words)
    arms = [(cell, right), *([(cell.baseline(), base)] if base is not None else [])]
    for arm, answers in arms:
        predict(results, arm, answers)
    keys = [arm.prediction_key for arm, _ in arms]
    columns = runner.identity(cell) | derived_columns.quality(cell, results, keys)
    Store(results).append([columns | {"host_id": "here"} | more])
    return columns


def predict(results: Path, cell: Cell, right: Sequence[bool]) -> None:
    Predictions(results / "predictions", cell.prediction_key).append(
        {"id": row.id, "prediction": row.references[0] if good else "xyzzy"}
        for row, good in zip(cell.rows().rows, right, strict=True)
    )


def task(name: str, /, **given: Any) -> Any:
    """A task of the configuration, with other values of its fields."""
    return plugins.build({**plugins.conf("task", name), **given})


def method(name: str, /, **given: Any) -> Any:
    """A method of the configuration, with other values of its fields."""
    return plugins.build({**plugins.undescribed(plugins.conf("method", name)), **given})
