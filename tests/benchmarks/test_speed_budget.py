"""Arms that would overrun are skipped, and the others end in time, on a clock of the test."""

from __future__ import annotations

import pytest

from benchmarks.speed_budget import Budget


class Machine:
    """A clock on which an arm takes `seconds` at 1,024 tokens, and grows with an exponent."""

    def __init__(self):
        self.now = 0.0

    def arm(self, seconds: float, growth: float = 2.0):
        def run(n: int) -> None:
            self.now += seconds * (n / 1024) ** growth

        return run


@pytest.fixture
def machine():
    return Machine()


@pytest.mark.parametrize("speed", [0.01, 1, 10, 100])
def test_the_whole_ends_in_time_on_any_machine(machine, speed):
    lengths = (1024, 4096, 16384)
    budget = Budget(240, [n**0.5 for n in lengths], lambda: machine.now)
    costs = {"vanilla": 0.02, "quick": 0.002, "slow": 2.0}
    arms = {name: machine.arm(seconds * speed) for name, seconds in costs.items()}
    measured = 0
    for n in lengths:
        budget.begin_part()
        plan = budget.plan("attention", n, arms, rounds=5)
        for _ in range(1 + plan.rounds):
            for arm in plan.arms:
                arms[arm](n)
                measured += 1
        assert set(plan.arms) | set(plan.skipped) == set(arms)
    assert measured
    assert machine.now <= 240


def test_a_slow_arm_is_skipped_with_what_it_would_take(machine):
    budget = Budget(100, [1], lambda: machine.now)
    budget.begin_part()
    arms = {"vanilla": machine.arm(0.1), "slow": machine.arm(4.0)}
    plan = budget.plan("attention", 4096, arms, rounds=5)
    assert plan.arms == ["vanilla"]
    assert plan.skipped["slow"].startswith("would take about 2 min, it has ")


def test_an_arm_is_skipped_with_what_it_is_compared_with(machine):
    budget = Budget(10, [1], lambda: machine.now)
    budget.begin_part()
    arms = {"vanilla": machine.arm(6.0), "quick": machine.arm(0.01)}
    plan = budget.plan("attention", 4096, arms, 5, bases={"quick": "vanilla"})
    assert not plan.arms and set(plan.skipped) == {"vanilla", "quick"}


def test_a_linear_arm_is_known_from_longer_runs_than_a_quadratic_one(machine):
    """At 64k tokens a square of what it takes at 1k would not fit."""
    budget = Budget(60, [1], lambda: machine.now)
    budget.begin_part()
    arms = {"linear": machine.arm(0.05, growth=1.0), "quadratic": machine.arm(0.05)}
    assert budget.plan("attention", 65536, arms, rounds=1).arms == ["linear"]


def test_what_an_arm_took_projects_its_time_at_the_next_length(machine):
    budget = Budget(100, [1, 1], lambda: machine.now)
    budget.begin_part()
    arms = {"linear": machine.arm(0.5, growth=1.0), "quadratic": machine.arm(0.5)}
    budget.know("layer", 1024, {"linear": 0.5, "quadratic": 0.5})
    budget.know("layer", 4096, {"linear": 2.0, "quadratic": 8.0})
    taken = {arm: budget.projected(("layer", arm), 16384, arms[arm], 1.0) for arm in arms}
    assert taken == {"linear": pytest.approx(16.0), "quadratic": pytest.approx(128.0)}
    assert budget.plan("layer", 16384, arms, 1).arms == ["linear"]
