"""The time that benchmarks.speed may take, and what of it each arm would: an arm that would overrun
is skipped, so that the whole ends in time on any machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from bench.units import span

Arm = TypeVar("Arm", bound=Hashable)
RunAt = Callable[[int], object]
"""Runs an arm on the first tokens of its input: as many as given."""

GROWTH = 2.0
"""Of an arm's time with the length, the exponent: no arm's grows faster than exact attention's."""
MORE_GROWTH = 0.5
"""How much greater it may be at the next length than it was between two shorter ones, whose time is
in part of a call and not of its tokens."""
STEP = 4  # between a length and the next one that projects the time at it
FIRST_PROBE = 1024
PROBE_SHARE = 0.125  # of the time left, the most that a further probe may take
LEAST_S = 0.1  # of an arm in a round: short runs are repeated


class Plan(NamedTuple, Generic[Arm]):
    """The arms to run, in how many rounds, and why the others are skipped."""

    arms: list[Arm]
    rounds: int
    skipped: dict[Arm, str]


class Budget:
    """`seconds` for parts of these weights, one after the other. What a part leaves, later ones
    have."""

    def __init__(
        self, seconds: float, weights: Sequence[float], clock: Callable[[], float] = time.monotonic
    ):
        self.clock = clock
        self.weights = list(weights)
        self.ends = clock() + seconds
        self.part_ends = self.ends
        self.known: dict[Any, tuple[int, float]] = {}
        self.growth: dict[Any, float] = {}

    def begin_part(self) -> None:
        now = self.clock()
        share = self.weights[0] / sum(self.weights)
        self.weights.pop(0)
        self.part_ends = now + share * (self.ends - now)

    def plan(
        self,
        group: Hashable,
        n: int,
        arms: Mapping[Arm, RunAt],
        rounds: int,
        bases: Mapping[Arm, Arm] | None = None,
        share: float = 1.0,
    ) -> Plan[Arm]:
        """What of these arms fits into `share` of the part's time: each runs once on all threads
        and then in every round. An arm is skipped with its base. Arms of equal names have equal
        times in a `group`."""
        left = share * (self.part_ends - self.clock())
        taken: dict[Arm, float] = {}
        skipped: dict[Arm, str] = {}
        for arm, run_at in arms.items():
            base = (bases or {}).get(arm)
            if base in skipped:
                skipped[arm] = "what it is compared with is skipped"
                continue
            seconds = max(LEAST_S, self.projected((group, arm), n, run_at, left))
            free = left - 2 * sum(taken.values())
            if 2 * seconds > free:
                skipped[arm] = f"would take about {_about(2 * seconds)}, it has {_about(free)}"
            else:
                taken[arm] = seconds
        a_round = sum(taken.values())
        fitting = int(left / a_round) - 1 if taken else 0
        return Plan(list(taken), max(1, min(rounds, fitting)), skipped)

    def projected(self, key: Hashable, n: int, run_at: RunAt, left: float) -> float:
        """Seconds of one run at n tokens, from the longest shorter length that is known. Longer
        ones are run for it as far as they take little of what is left."""
        first = min(n // STEP, FIRST_PROBE)
        if key not in self.known:
            run_at(first)  # compiles
            self.learn(key, max(1, first // STEP), run_at)
            self.learn(key, first, run_at)
        while True:
            at, seconds = self.known[key]
            growth = self.growth.get(key, GROWTH)
            if at * STEP >= n or seconds * STEP**growth > PROBE_SHARE * left:
                return seconds * math.pow(n / at, growth)
            self.learn(key, at * STEP, run_at)

    def know(self, group: Hashable, n: int, seconds: Mapping[Any, float]) -> None:
        """What one run of each of these arms took: better than a projection."""
        for arm, taken in seconds.items():
            self._know((group, arm), n, taken)

    def learn(self, key: Hashable, n: int, run_at: RunAt) -> None:
        started = self.clock()
        run_at(n)
        self._know(key, n, self.clock() - started)

    def _know(self, key: Hashable, n: int, seconds: float) -> None:
        at, before = self.known.get(key, (n, seconds))
        if n > at and before > 0:
            grew = math.log(max(seconds / before, 1)) / math.log(n / at)
            self.growth[key] = min(GROWTH, grew + MORE_GROWTH)
        self.known[key] = n, seconds


def _about(seconds: float) -> str:
    return span(seconds) if seconds >= 10 else f"{max(0.0, seconds):.1f} s"
