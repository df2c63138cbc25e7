"""longctx-bench: is a long-context method faster, smaller and as good, and how sure can one be?

import bench
row = bench.run(bench.compose("method=vcc", "task=narrativeqa", "length=1024"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bench.execution.runner import ReturnedRow
    from bench.execution.supervisor import Progress
    from bench.request.cell import Cell


def compose(*overrides: str) -> Cell:
    """The cell of a request with the arguments of `bench run`. Raises bench.errors.RequestError."""
    from bench.request import compose as config
    from bench.request.cell import Cell

    return Cell.of(config.compose(overrides))


def run(
    cell: Cell,
    results: Path | str = "results/runs",
    *,
    force: bool = False,
    deadline_s: float = 3600.0,
    progress: Progress | None = None,
) -> ReturnedRow:
    """Run a cell, store its row and return it: see bench.execution.runner.run."""
    from bench.execution import runner

    return runner.run(cell, results, force=force, deadline_s=deadline_s, progress=progress)
