"""Times several methods in turns in one process, next to vanilla: for many methods cheaper than
pairs of each, as they share vanilla's samples.

In a round each method is timed once, in an order at random, and vanilla before them, after them and
in between. A sample of a method and vanilla's nearest one are a pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.execution import arms, worker
from bench.measure.gpu_call import check_streams
from bench.measure.paired_timing import PairSamples, timing_loop
from bench.measure.timed_call import Arm, Process, Sample
from bench.models.base import Family
from bench.request.cell import Cell
from bench.request.schema import BASELINE

NEIGHBOURS = 6
"""The most methods between two samples of vanilla."""
VANILLA = -1
"""The number of vanilla among the methods; cells have theirs from 0 on."""


def loaded(request: Mapping[str, Any]) -> tuple[list[Cell], Family, Process]:
    """The request's cells, equal in all but their method, and their model with vanilla in it, in a
    process made ready to time them."""
    cells = [Cell.from_json(text) for text in request["cells"]]
    worker.keep_freed_memory()
    arms.prepare(cells[0], timed=True)
    process = Process(cells[0].device["kind"])
    return cells, arms.load(cells[0], arms.vanilla()), process


@dataclass
class Turns:
    """Samples of methods, by number of their cell.

    arms     each with its method
    calls    timed calls of a sample
    untimed  calls before them, which bring the arm's memory back into the processor's caches
    pairs    samples of a method, each with vanilla's
    order    for each pair V where vanilla's sample came first, else M
    exact    all samples of vanilla
    """

    arms: Mapping[int, Arm]
    calls: int = 1
    untimed: int = 0
    pairs: dict[int, list[tuple[Sample, Sample]]] = field(default_factory=dict)
    order: dict[int, str] = field(default_factory=dict)
    exact: list[Sample] = field(default_factory=list)

    def time(self, rounds: int, progress: Callable[[int, int], None]) -> None:
        numbers = [number for number in self.arms if number != VANILLA]
        for number in self.arms:
            self._sample(number, 0)
        with timing_loop():
            for done in range(rounds):
                progress(done, rounds)
                self.exact.append(self._sample(VANILLA, done))
                turns = random.sample(numbers, len(numbers))
                for at in range(0, max(1, len(turns)), NEIGHBOURS):
                    turn = turns[at : at + NEIGHBOURS]
                    samples = [self._sample(number, done) for number in turn]
                    self.exact.append(self._sample(VANILLA, done))
                    self._pair(turn, samples)
        for arm in self.arms.values():
            check_streams(arm.left, arm.usual_ns)

    def fields(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """The measured fields of each cell's comparison; of vanilla the samples alone."""
        shared: dict[str, Any] = {"calls_per_sample": self.calls}
        aa = [*zip(self.exact[::2], self.exact[1::2], strict=False)]
        found: dict[str, Any] = {}
        for number, cell in enumerate(cells):
            if cell.method["name"] == BASELINE:
                found[str(number)] = shared | {"samples_ns": [one.wall_ns for one in self.exact]}
            elif number in self.pairs:
                taken = PairSamples(self.pairs[number], aa, self.order[number], [], [])
                first, second = taken.sides(aa)
                found[str(number)] = shared | taken.fields() | {
                    "aa_first_samples_ns": first, "aa_second_samples_ns": second,
                    "waits_left_out": taken.without_waits or None,
                }  # fmt: skip
        return found

    def _sample(self, number: int, i: int) -> Sample:
        arm = self.arms[number]
        if self.untimed:
            arm.catch_up(self.untimed)
        sample = arm.sample(i, self.calls)
        arm.given.clear()
        return sample

    def _pair(self, turn: Sequence[int], samples: Sequence[Sample]) -> None:
        """The methods' samples with the nearer one of vanilla's before and after them; the middle
        one's is drawn."""
        for place, (number, sample) in enumerate(zip(turn, samples, strict=True)):
            nearer = 2 * place + 1 - len(turn) or random.choice((-1, 1))
            exact = self.exact[-1 if nearer > 0 else -2]
            self.pairs.setdefault(number, []).append((sample, exact))
            self.order[number] = self.order.get(number, "") + ("M" if nearer > 0 else "V")
