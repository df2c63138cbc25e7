"""The best constant answer, chosen on rows that the cell isn't scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.request.cell import Cell, data_of
from bench.rows.columns import Row
from tasks import base
from tasks.base import DataError, Task
from tasks.metrics import chance

OTHERS = 64
FEWEST = 16
"""With fewer rows the best constant answer is a poor estimate for other rows."""
TRAINING = "train"


def columns(cell: Cell, task: Task, scored: Sequence[base.Row], low: float | None) -> Row:
    """The columns of chance level; `low` is the lower end of the score's interval. All are null for
    a task in which no answer is given."""
    found: Row = {"chance": None, "chance_reason": None, "at_chance": None}
    if not task.constants(scored):
        return found
    others = other_rows(cell, task, scored)
    if len(others) < FEWEST:
        reason = f"it is chosen on {FEWEST} rows that aren't scored, and the data have "
        return {**found, "chance_reason": f"{reason}{len(others)} other rows"}
    level = chance.chance(task, scored, others)
    return {**found, "chance": level, "at_chance": None if low is None else low <= level}


def other_rows(cell: Cell, task: Task, scored: Sequence[base.Row]) -> Sequence[base.Row]:
    """Up to OTHERS rows that the cell doesn't have: those after its own in their split, else the
    first of the training split. Fewer than FEWEST where the data have no more."""
    data = data_of(vars(cell))
    later = _rows(cell, task, data, len(scored) + OTHERS)[len(scored) :]
    if len(later) >= FEWEST or data.split == TRAINING:
        return later
    return _rows(cell, task, replace(data, split=TRAINING), OTHERS) or later


def _rows(cell: Cell, task: Task, data: base.Data, n: int) -> Sequence[base.Row]:
    """Empty where the data have no such split."""
    try:
        return task.load(data, n, cell.length, cell.seed).rows
    except DataError:
        return ()
