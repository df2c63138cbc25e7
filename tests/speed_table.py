"""How `tests/speed.py` takes times, and the lines it prints."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

Arm = TypeVar("Arm", bound=Hashable)


def cpu_s(run: Callable[[], object], least_s: float = 0.05) -> float:
    """CPU time of one run; repeated until it can be told from nothing."""
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            run()
        taken = time.process_time() - start
        if taken >= least_s:
            return taken / count
        count = max(2 * count, int(count * least_s / max(taken, 1e-6)))


def rounds_of(runs: Mapping[Arm, Callable[[], object]], rounds: int) -> dict[Arm, list[float]]:
    """CPU seconds of one thread, of every arm in every round, back and forth."""
    torch.set_num_threads(1)
    taken: dict[Arm, list[float]] = {arm: [] for arm in runs}
    for turn in range(rounds):
        for arm in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            taken[arm].append(cpu_s(runs[arm]))
    return taken


def error(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).norm() / exact.norm())


def row(
    n: int,
    name: str,
    cpu: list[float],
    base: list[float],
    run: Callable[[], object] | None = None,
    eager: list[float] | None = None,
    ideal: float | None = None,
    goal: float | None = None,
    error: float | None = None,
    found: Mapping[str, float] | None = None,
    used: str = "torch",
    note: str = "",
) -> None:
    """One line; `base` and `eager` are the samples of the same rounds, None of what wasn't run."""

    def times(other: list[float]) -> float:
        return statistics.median(b / a for a, b in zip(cpu, other, strict=True))

    wall = "–"
    if run is not None:
        torch.set_num_threads(os.cpu_count() or 1)
        start = time.perf_counter()
        run()
        wall = f"{(time.perf_counter() - start) * 1e3:.1f}"
        torch.set_num_threads(1)
    cells: list[Any] = [
        f"{n:6} {name:28}",
        f"cpu {statistics.median(cpu) * 1e3:9.1f} ms  wall {wall:>9} ms",
        f"{times(base):6.2f}×",
        f"eager {times(eager):6.2f}×" if eager else "eager      –",
        f"ideal {ideal:6.2f}×" if ideal else "ideal      –",
        f"goal {goal:4g}×" if goal else "goal    –",
        f"error {error:.1e}" if error is not None else "error      –",
    ]
    if found:
        cells.append("recall {recall:.3f} mass {mass:.3f} of {mass_best:.3f}".format(**found))
    print("  ".join(cells) + f"  [{used}]" + (f" {note}" if note else ""), flush=True)
