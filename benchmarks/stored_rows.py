"""A results folder with the number of rows of years of use, written without measuring anything."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from bench.request import plugins
from bench.rows.store import Store

ROWS, SHARD = 100_000, 5_000
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
MODELS = ("t5-base", "t5-large", "my-roberta-base", "embedded", "random-lra")


def fill(folder: Path) -> None:
    """Rows of every method and task at several lengths, models and seeds."""
    store = Store(folder)
    tasks, methods = list(plugins.available("task")), list(plugins.available("method"))
    points = itertools.product(range(1 << 20), methods, tasks, LENGTHS, MODELS)
    for start in range(0, ROWS, SHARD):
        shard = enumerate(itertools.islice(points, SHARD), start)
        store.append(_row(number, *point) for number, point in shard)


def _row(i: int, seed: int, method: str, task: str, length: int, model: str) -> dict[str, object]:
    value, ratio = i * 7919 % 10_007 / 100.07, 0.3 + i % 13 / 10
    return {
        "row_id": f"{i:032x}", "cell_key": f"{i:064x}", "cell": json.dumps({"probe": None}),
        "status": "ok" if i % 50 else "oom_host", "status_detail": "killed", "method": method,
        "method_params": json.dumps({"k": 16, "h": 90}), "task": task, "split": "validation",
        "data_source": "hub" if i % 3 else "embedded", "model": model, "weights_kind": "finetuned",
        "length": length, "batch": 1, "dtype": "float32", "device": "cpu", "threads": 2,
        "seed": seed, "measure": "standard", "metric": "f1", "n_scored": 1000, "value": value,
        "ci_lo": max(0.0, value - 1), "ci_hi": min(100.0, value + 1),
        "metrics": json.dumps({"f1": value, "exact_match": value / 2}), "lat_ratio": ratio,
        "lat_ratio_ci_lo": ratio * 0.98, "lat_ratio_ci_hi": ratio * 1.02, "lat_ratio_p": 1e-4,
        "lat_n_pairs": 40,
        "mem_ratio": ratio, "rss_base_bytes": 1 << 30, "rss_peak_delta_bytes": i << 10,
        "base_rss_base_bytes": 1 << 30, "base_rss_peak_delta_bytes": 1 << 28,
        "lat_samples_ns": [i] * 40, "lat_base_samples_ns": [i] * 40, "host_id": f"host-{i % 7}",
        "cpu_model": "a processor", "attend_ns": 1 + i,
    }  # fmt: skip
