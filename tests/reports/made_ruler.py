"""Rows of RULER's tasks, made without running anything."""

from collections.abc import Iterable
from typing import Any

from reports.ruler_scores import TASKS
from tests import made

REACH = 15.0


def score(method: str, task: str, length: int, value: float, **more: Any) -> dict[str, Any]:
    """An ok row; a method's difference is from vanilla's 80."""
    columns: dict[str, Any] = {
        "benchmark": "ruler", "task": f"ruler_{task}", "method": method, "length": length,
        "model": "embedded-llama", "n_samples_planned": 16, "n_scored": 16, "metric": "m",
        "value": value, "ci_lo": value - REACH, "ci_hi": value + REACH, "chance": 0.0,
        "higher_is_better": True, "at_chance": value <= REACH,
        "experiment": "ruler",
    }  # fmt: skip
    if method != "vanilla":
        columns |= {"base_value": 80.0, "base_ci_lo": 65.0, "base_ci_hi": 95.0,
                    "value_diff": value - 80, "value_diff_ci_lo": value - 86,
                    "value_diff_ci_hi": value - 74}  # fmt: skip
    return made.full(**columns | more)


def scores(
    values: dict[str, Iterable[float]], lengths: Iterable[int], tasks: Iterable[str] = TASKS
) -> list[dict[str, Any]]:
    """A row for each method, length and task; `values` are a method's scores by length."""
    lengths, tasks = list(lengths), list(tasks)
    return [
        score(method, task, length, value)
        for method, by_length in values.items()
        for length, value in zip(lengths, by_length, strict=True)
        for task in tasks
    ]


def failed(method: str, task: str, length: int, status: str) -> dict[str, Any]:
    """A row of a cell that has no score."""
    nothing = dict.fromkeys(("value", "ci_lo", "ci_hi", "at_chance", "value_diff"))
    return score(method, task, length, 0.0) | nothing | {"status": status, "base_value": None}
