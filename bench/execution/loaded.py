"""The objects that a cell's parent (bench.execution.fork_server) loads for the processes that are
forked from it: the model with vanilla in it, and the encoded inputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.request.cell import Cell
from tasks.base import Encoded, Row

if TYPE_CHECKING:
    from bench.models.base import Family


class Inputs(NamedTuple):
    """The rows of a cell without their right answers, one for each question, and the encoded inputs
    of its first texts."""

    rows: Sequence[Row]
    encoded: Sequence[Encoded]


@dataclass(frozen=True)
class Loaded:
    cell: Cell
    family: Family
    inputs: Inputs | None = None


parent: Loaded | None = None
"""The objects loaded by this process, or by the one from which it was forked."""


def model_key(cell: Cell) -> str:
    """Equal for cells whose weights are equal without a method."""
    parts = [cell.model, cell.dtype, cell.device["kind"], cell.seed]
    return json.dumps(parts, sort_keys=True, default=dict)


def inputs_key(cell: Cell) -> str:
    """Equal for cells with equal encoded inputs."""
    parts = [cell.task, cell.data, cell.n, cell.length, cell.turns, cell.prompt,
             cell.skip_unanswerable]  # fmt: skip
    return json.dumps([model_key(cell), *parts], sort_keys=True, default=dict)


def family_of(cell: Cell) -> Family | None:
    """The loaded model, if it is the cell's."""
    if parent is None or model_key(parent.cell) != model_key(cell):
        return None
    return parent.family


def inputs_of(cell: Cell, count: int | None) -> Inputs | None:
    """The loaded inputs, if they are the cell's and include those of its first `count` texts (None:
    of all texts)."""
    if parent is None or parent.inputs is None or inputs_key(parent.cell) != inputs_key(cell):
        return None
    found, texts = parent.inputs, -(-len(parent.inputs.rows) // cell.turns)
    if len(found.encoded) < texts and (count is None or len(found.encoded) < count):
        return None
    return found if count is None else Inputs(found.rows, found.encoded[:count])
