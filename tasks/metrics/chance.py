"""Chance level: a metric's score of predictions that don't depend on the document."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tasks.base import Constant, Row, Task

TRIED_ROWS = 32
WORD_PAIRS = 1 << 19
"""Limit of word pairs compared to find the best prediction, since ROUGE of long texts is slow."""


def chance(task: Task, rows: Sequence[Row], others: Sequence[Row]) -> float:
    """The score of a constant answer (tasks.base.Task.constants) on `rows` by the task's metric.

    The answer is the one that scores best on `others`, which must not be among `rows`: an answer
    chosen on the scored rows would score too high, the more so the fewer rows there are. Texts are
    chosen on TRIED_ROWS, and fewer long ones are tried, so a better one may be missed.

    If there are options, the result is at least the score of a guess among them: if two classes are
    about equally common, other rows may choose the rarer one."""
    is_class = task.labels is not None
    others = others if is_class else others[:TRIED_ROWS]
    words = sum(len(" ".join(row.references[:1]).split()) for row in others) // len(others) + 1
    limit = max(1, WORD_PAIRS // (words * words * len(others)))
    tried = task.constants(others)[: None if is_class else limit]
    best = max(tried, key=lambda answer: _score(task, answer, others))
    guessed = [_score(task, answer, rows) for answer in task.options(rows)]
    return max(_score(task, best, rows), fmean(guessed) if guessed else 0.0)


def _score(task: Task, answer: Constant, rows: Sequence[Row]) -> float:
    return task.score([answer(row) for row in rows], [row.references for row in rows])["value"]
