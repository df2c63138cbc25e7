"""A planned sweep as data: its cells, what each will cost, and what is known of it already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.request.cell import Cell
from bench.sweep import launchers


class PlanState(StrEnum):
    """State of a cell in a plan."""

    DONE = "done"
    TO_DO = "to do"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    OVER_BUDGET = "over budget"


@dataclass(frozen=True)
class Planned:
    """One cell of a sweep. `overrides` tell it from the others, `reason` says why it is refused,
    unsupported or failed; `seconds` and `bytes` are estimates, `row_id` the row it has already."""

    overrides: tuple[str, ...]
    request: Mapping[str, Any]
    cell: Cell | None
    state: PlanState
    reason: str = ""
    seconds: float = 0.0
    bytes: int = 0
    row_id: str | None = None

    @property
    def title(self) -> str:
        return " ".join(self.overrides) or "the cell"

    @property
    def runs(self) -> bool:
        """Whether a sweep starts it."""
        return self.state == PlanState.TO_DO


@dataclass(frozen=True)
class Plan:
    """`fixed` are the overrides that all cells share; `cells` stand in the order in which they run.
    `engine` is the choice of `hydra/launcher`, `launcher` its settings; `events` is the file
    that gets the events."""

    fixed: tuple[str, ...]
    cells: tuple[Planned, ...]
    engine: str
    launcher_name: str
    launcher: Mapping[str, Any]
    results: Path
    budget: str | None
    budget_s: float | None
    warning: str | None = None
    events: Path | None = None

    @property
    def open(self) -> list[Planned]:
        """The cells that a sweep starts. In one process, cells that the estimates leave out are
        considered again when their turn comes: there may be time for them."""
        considered = PlanState.OVER_BUDGET if self.engine == launchers.BASIC else None
        return [planned for planned in self.cells if planned.runs or planned.state == considered]

    def of(self, state: PlanState) -> list[Planned]:
        return [planned for planned in self.cells if planned.state == state]

    @property
    def n_parallel(self) -> int:
        """How many cells run at the same time."""
        if self.engine == launchers.JOBLIB:
            n = int(self.launcher["n_jobs"])
            return n if n > 0 else len(os.sched_getaffinity(0))
        if self.engine == launchers.SLURM:
            return min(int(self.launcher["array_parallelism"]), len(self.open))
        return 1

    @property
    def workers(self) -> str | None:
        """The workers of this machine that run cells at the same time; None for one at a time."""
        several = self.engine == launchers.JOBLIB and self.n_parallel != 1
        return f"n_jobs={self.launcher['n_jobs']}" if several else None

    @property
    def seconds(self) -> float:
        """The estimate of the whole sweep."""
        return sum(planned.seconds for planned in self.open if planned.runs) / max(
            1, self.n_parallel
        )
