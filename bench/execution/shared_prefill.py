"""Answers of cells that are equal in all but their method, whose prompts are read once for all.

They are stored as each cell's own predictions, sample by sample: the cell's run then finds nothing
missing, or answers the rest in its own process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError, RunError
from bench.execution import cell_lock, cell_run
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Progress, Running
from bench.request.cell import Cell
from bench.rows.predictions import Predictions
from bench.rows.shards import remove_leftovers
from bench.rows.store import PREDICTIONS
from bench.status import Status

STAGE = "shared prefill"


def answer(cells: Sequence[Cell], results: Path, deadline_s: float, progress: Progress) -> None:
    """Answers the texts of the cells without a stored prediction, and vanilla's where it reads the
    prompts as they do. What goes wrong is left to the cells' own runs, which report it."""

    def report(line: str) -> None:
        progress(line, 0, 0)

    with contextlib.ExitStack() as locks, contextlib.suppress(RequestError, RunError):
        for key in sorted(cell.key for cell in cells):
            locks.enter_context(cell_lock.held(results / f".{key}.lock", report))
        run = CellRun(cells[0], results, deadline_s * len(cells), progress)
        if cell_run.load_parent(run) is None:
            _answer(run, [*cells, *_vanilla(cells[0])])


def _vanilla(cell: Cell) -> list[Cell]:
    base = cell.baseline()
    same = cell.method.get("prefill") is None and base.model == cell.model
    return [base] if same else []


def _answer(run: CellRun, cells: Sequence[Cell]) -> None:
    cells = list({cell.prediction_key: cell for cell in cells}.values())
    folder = run.results / PREDICTIONS
    for cell in cells:
        remove_leftovers(folder / cell.prediction_key)
    stored = [Predictions(folder, cell.prediction_key) for cell in cells]
    done = [
        [[name, record.get("input_sha256")] for name, record in each.done().items()]
        for each in stored
    ]

    def store(_: Running, message: Mapping[str, Any]) -> None:
        stored[message["setting"]].append(message["records"])

    outcome = run.child(
        "measure.shared_prefill", {"predictions": store}, stage=STAGE, done=done,
        cells=[cell.to_json() for cell in cells],
    )  # fmt: skip
    if outcome.status in (Status.OOM_HOST, Status.OOM_DEVICE) and len(cells) > 1:
        half = len(cells) // 2
        _answer(run, cells[:half])
        _answer(run, cells[half:])
