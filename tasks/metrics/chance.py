"""Chance level: a metric's score of predictions that don't depend on the document."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.base import Row, Task

TRIED_ROWS = 32
WORD_PAIRS = 1 << 19
"""Limit of word pairs compared to find the best prediction, since ROUGE of long texts is slow."""


def chance(task: Task, rows: Sequence[Row], others: Sequence[Row]) -> float:
    """The score of a constant answer (tasks.base.Task.constants) on `rows` by the task's metric.

    The answer is the one that scores best on `others`, which must not be among `rows`: chosen on
    the rows that it is scored on it would be too good, the more so the fewer they are. Texts are
    chosen on TRIED_ROWS, and fewer long ones are tried, so a better one may be missed."""
    is_class = task.labels is not None
    others = others if is_class else others[:TRIED_ROWS]
    right = [row.references for row in others]
    words = sum(len(texts[0].split()) for texts in right) // len(right) + 1
    limit = max(1, WORD_PAIRS // (words * words * len(right)))
    tried = task.constants(others)[: None if is_class else limit]
    best = max(tried, key=lambda answer: task.score(list(map(answer, others)), right)["value"])
    return task.score(list(map(best, rows)), [row.references for row in rows])["value"]
