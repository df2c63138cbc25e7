"""Scores over seeds: the mean and the spread of rows that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, stdev
from typing import Any

from bench.rows.columns import Row
from bench.rows.query import AnyRow, counting
from bench.status import Status

SAME = (
    "method", "method_params", "task", "split", "data_source", "model", "weights_kind", "length",
    "batch", "dtype", "device", "threads", "n_samples_planned", "measure", "metric", "question",
    "turns", "prompt", "weights_format", "method_version", "task_version", "metric_version",
    "recipe", "recipe_params",
)  # fmt: skip
"""What rows of several seeds share. A seed draws the rows, the weights and their training."""
COLUMNS = (*SAME, "seeds", "mean", "sd", "lowest", "highest", "seeds_at_chance")


def over_seeds(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A record with COLUMNS for each score, of the newest row of each seed. `sd` is the standard
    deviation of one seed's score, None where there is one seed."""
    records = []
    for key, scored in by_seed(rows, "value").items():
        scores = [row["value"] or 0.0 for row in scored.values()]
        spread = {
            "seeds": " ".join(map(str, sorted(scored))),
            "mean": fmean(scores),
            "sd": stdev(scores) if len(scores) > 1 else None,
            "lowest": min(scores),
            "highest": max(scores),
            "seeds_at_chance": sum(bool(row["at_chance"]) for row in scored.values()),
        }
        records.append(dict(zip(SAME, key, strict=True)) | spread)
    return records


def by_seed(rows: Iterable[AnyRow], name: str) -> dict[tuple[Any, ...], dict[int, AnyRow]]:
    """SAME → seed → the newest row that has a value in the column."""
    groups: dict[tuple[Any, ...], dict[int, AnyRow]] = {}
    for row in counting(rows):
        if row["status"] == Status.OK and row.get(name) is not None:
            key = tuple(row.get(column) for column in SAME)
            groups.setdefault(key, {})[row["seed"]] = row
    return groups
