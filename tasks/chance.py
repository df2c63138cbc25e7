"""What a task's metric gives to answers that need no reading: the level that a score must clear."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.base import Row, Task

TRIED_ROWS = 64
WORD_PAIRS = 1 << 19
"""So many pairs of words may be compared to find the best: the overlap of long texts is slow."""


def chance(task: Task, rows: Sequence[Row]) -> float:
    """The score of the best constant answer (tasks.base.Task.constants), in the metric's scale.

    The best class is found on all rows; of other answers the best is found on some, and scored on
    all. Of long answers fewer are tried, so that a better one may be left out."""
    references = [row.references for row in rows]
    classes = task.labels is not None
    some = range(0, len(rows), 1 if classes else -(-len(rows) // TRIED_ROWS))
    right = [references[at] for at in some]
    words = sum(len(one[0].split()) for one in right) // len(right) + 1
    most = max(1, WORD_PAIRS // (words * words * len(right)))
    tried = list(task.constants(rows))[: None if classes else most]
    best = max(tried, key=lambda said: task.score([said[at] for at in some], right)["value"])
    return task.score(best, references)["value"]
