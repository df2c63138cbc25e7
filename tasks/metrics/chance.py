"""Chance level: a metric's score of predictions that don't depend on the document."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.base import Row, Task

TRIED_ROWS = 64
WORD_PAIRS = 1 << 19
"""Limit of word pairs compared to find the best prediction, since ROUGE of long texts is slow."""


def chance(task: Task, rows: Sequence[Row]) -> float:
    """The score of the best constant predictions (tasks.base.Task.constants) by the task's metric.

    The best class is selected on all rows; other answers are selected on a sample of rows and
    scored on all. Fewer long answers are tried, so a better one may be missed."""
    references = [row.references for row in rows]
    is_class = task.labels is not None
    sample = range(0, len(rows), 1 if is_class else -(-len(rows) // TRIED_ROWS))
    right = [references[at] for at in sample]
    words = sum(len(texts[0].split()) for texts in right) // len(right) + 1
    limit = max(1, WORD_PAIRS // (words * words * len(right)))
    tried = list(task.constants(rows))[: None if is_class else limit]
    best = max(tried, key=lambda answers: task.score([answers[i] for i in sample], right)["value"])
    return task.score(best, references)["value"]
