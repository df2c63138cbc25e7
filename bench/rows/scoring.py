"""The official metric of a task, applied to stored predictions and checked: a metric may be a
plugin's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.errors import errors_of

if TYPE_CHECKING:
    from tasks.base import Row, Task


def scored(
    task: Task, answers: Sequence[Any], references: Sequence[Sequence[str]]
) -> tuple[Mapping[str, Any], list[float]]:
    """The figures of `Task.score` and the numbers of `Task.score_each`. Raises RequestError where
    the metric raises, or gives something else."""
    name, target = f"metric {task.metric} of task {task.name}", type(task).__module__
    with errors_of(name, target):
        figures = task.score(answers, references)
        if not isinstance(figures, Mapping) or not is_number(figures.get("value")):
            raise ValueError(f"score gave {figures!r:.200}; expected figures with a number 'value'")
        each = list(task.score_each(answers, references))
        if len(each) != len(answers) or not all(map(is_number, each)):
            raise ValueError(
                f"score_each gave {each!r:.200}; expected a number for each of {len(answers)} rows"
            )
    return figures, each


def documents(rows: Iterable[Row]) -> list[str]:
    """Keys of the documents of rows: their text, or a row's id if it has no text."""
    return [row.document or row.id for row in rows]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
