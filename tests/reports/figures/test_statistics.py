"""Fronts, exponents, held-out lengths and crossovers, on numbers whose answer is known."""

import math

import numpy as np
import pytest

from reports.figures.statistics import (
    Interval,
    ParetoPoint,
    crossover,
    held_out,
    power_law,
    significantly_less,
    standings,
)

LENGTHS = [512, 1024, 2048, 4096, 8192]


def about(value, half):
    return Interval(value, value - half, value + half)


def exact(value):
    return Interval(value, value, value)


def test_a_point_is_dominated_only_where_both_intervals_say_so():
    best = ParetoPoint(about(1.0, 0.1), about(90, 1))
    sure = ParetoPoint(about(2.0, 0.1), about(80, 1))
    unsure_quality = ParetoPoint(about(2.0, 0.1), about(89.5, 3))
    unsure_cost = ParetoPoint(about(1.05, 0.1), about(80, 1))
    cheap = ParetoPoint(about(0.5, 0.1), about(50, 1))
    found = standings([best, sure, unsure_quality, unsure_cost, cheap])
    assert found == ["front", "dominated", "open", "open", "front"]


def test_equal_points_are_both_on_the_front():
    point = ParetoPoint(exact(1), exact(5))
    assert standings([point, point]) == ["front", "front"]


def test_a_figure_without_interval_is_never_sure():
    unknown = Interval(10, -math.inf, math.inf)
    assert not significantly_less(unknown, about(1000, 1))
    points = [ParetoPoint(exact(2), unknown), ParetoPoint(exact(1), about(99, 1))]
    assert standings(points) == ["open", "front"]


def test_joined_intervals_are_less_strict_than_gaps_between_them():
    # 0 ± 1 and 1.9 ± 1 overlap, but errors of both at once in full are unlikely: 1.9 > √2.
    assert significantly_less(about(0, 1), about(1.9, 1))
    assert not significantly_less(about(0, 1), about(1.3, 1))


def test_the_interval_of_an_exponent_holds_it_95_times_in_100():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        costs = [n**1.2 * math.exp(random.normal(0, 0.1)) for n in LENGTHS]
        law = power_law(LENGTHS, costs)
        held += law.lo <= 1.2 <= law.hi
    assert 930 <= held <= 968


def test_two_lengths_give_no_exponent():
    assert power_law([512, 1024, 1024], [1, 2, 2.1]) is None
    assert held_out([512, 1024, 2048], [1, 2, 4]) is None


def test_the_longest_length_is_predicted_from_the_others():
    told = held_out(LENGTHS, [*(2.0 * n for n in LENGTHS[:-1]), 4.0 * LENGTHS[-1]])
    assert told.length == pytest.approx(8192)
    assert told.predicted == pytest.approx(2.0 * 8192)
    assert told.error_pct == pytest.approx(-50)
    assert not told.lo <= told.measured <= told.hi


def test_a_predicted_length_lies_within_its_interval_95_times_in_100():
    random = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        told = held_out(LENGTHS, [n * math.exp(random.normal(0, 0.1)) for n in LENGTHS])
        held += told.lo <= told.measured <= told.hi
    assert 930 <= held <= 968


def test_unusable_columns_are_refused():
    with pytest.raises(ValueError, match="positive"):
        power_law([1, 2, 3], [1, 0, 2])
    with pytest.raises(ValueError, match="equal columns"):
        power_law([1, 2, 3], [1, 2])
    assert held_out([], []) is None


def test_a_crossover_lies_between_the_lengths_around_it():
    ratios = [about(r, 0.1 * r) for r in (2.0, 1.0 * 2**0.5, 0.5**0.5, 0.5)]
    found = crossover([1000, 2000, 4000, 8000], ratios)
    assert found.value == pytest.approx(math.sqrt(2000 * 4000))
    assert 2000 < found.lo < found.value < found.hi < 4000


@pytest.mark.parametrize(("ratios", "found"), [((0.5, 1.5), None), ((0.9, 0.5), (0, 0, 0))])
def test_a_curve_above_one_at_the_end_has_no_crossover_and_one_below_crossed_before(ratios, found):
    assert crossover([1000, 2000], [exact(ratio) for ratio in ratios]) == found


def test_unbounded_ratios_leave_the_crossover_unbounded():
    few = Interval(0.8, 0.0, math.inf)
    found = crossover([1000, 2000], [exact(2.0), few])
    assert 1000 < found.value < 2000
    assert found.lo == 1000
    assert math.isinf(found.hi)


def test_the_last_crossing_counts():
    found = crossover([1, 2, 4, 8], [exact(r) for r in (0.5, 2.0, 2.0, 0.5)])
    assert found.value == pytest.approx(math.sqrt(32))
