"""How benchmarks.speed measures CPU times, and the lines it prints."""

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
    """CPU seconds of one run, the mean over as many as take `least_s` together."""
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
    """CPU seconds of one thread, of every arm in every round, odd rounds in reverse order."""
    torch.set_num_threads(1)
    taken: dict[Arm, list[float]] = {arm: [] for arm in runs}
    for index in range(rounds):
        for arm in list(runs)[:: 1 if index % 2 == 0 else -1]:
            taken[arm].append(cpu_s(runs[arm]))
    return taken


def error(output: Tensor, exact: Tensor) -> float:
    """The relative error of an output, in the Frobenius norm."""
    return float((output - exact).norm() / exact.norm())


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
    recall: Mapping[str, float] | None = None,
    used: str = "torch",
    note: str = "",
) -> None:
    """Print one line. `base` and `eager` are samples of the same rounds; None: not measured."""

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
    if recall:
        cells.append("recall {recall:.3f} mass {mass:.3f} of {mass_best:.3f}".format(**recall))
    print("  ".join(cells) + f"  [{used}]" + (f" {note}" if note else ""), flush=True)
