"""Ranks as intervals: which rows are distinguished, by which evidence, and how often wrongly."""

import numpy as np
import pytest

from reports.leaderboard.ranks import HOW, beaten, rank
from tasks.base import Row

SAMPLES = 60


def row(value, lo=None, hi=None, method="vcc", **more):
    empty = dict.fromkeys((
        "value_diff", "value_diff_ci_lo", "value_diff_ci_hi", "base_predictions_sha256",
        "predictions_sha256", "lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi", "mem_ratio",
    ))  # fmt: skip
    return {**empty, "method": method, "value": value, "ci_lo": lo, "ci_hi": hi,
            "higher_is_better": True, "n_scored": 50} | more  # fmt: skip


def spans(found):
    return [*zip(found.first, found.last, strict=True)]


def alone(*rows):
    return rank(rows, [None] * len(rows))


def test_intervals_far_apart_give_single_ranks_and_overlapping_ones_share():
    rows = [row(50, 48, 52), row(90, 88, 92), row(51, 49, 53)]
    found = alone(*rows)
    assert spans(found) == [(2, 3), (1, 1), (2, 3)] and found.how == HOW[2]
    assert (1, 0) in found.better and (0, 1) not in found.better


def test_where_less_is_better_the_lowest_is_first():
    rows = [row(5.0, 4.9, 5.1, higher_is_better=False), row(3.0, 2.9, 3.1, higher_is_better=False)]
    assert spans(alone(*rows)) == [(2, 2), (1, 1)]


def test_one_row_is_first_and_without_an_interval_nothing_is_known():
    assert spans(alone(row(50, 48, 52))) == [(1, 1)]
    assert spans(alone(row(50), row(99))) == [(1, 2), (1, 2)]


def test_equal_scores_of_few_samples_leave_room():
    few = [row(100.0, 100.0, 100.0, n_scored=4), row(60.0, 60.0, 60.0, n_scored=4)]
    assert spans(alone(*few)) == [(1, 2), (1, 2)]
    many = [one | {"n_scored": 400} for one in few]
    assert spans(alone(*many)) == [(1, 1), (2, 2)]


def test_differences_from_vanilla_tell_apart_what_wide_intervals_do_not():
    base = {"base_predictions_sha256": "v"}
    rows = [
        row(60, 40, 80, "vanilla", predictions_sha256="v"),
        row(55, 35, 75, value_diff=-5, value_diff_ci_lo=-6, value_diff_ci_hi=-4, **base),
        row(50, 30, 70, value_diff=-10, value_diff_ci_lo=-11, value_diff_ci_hi=-9, **base),
    ]
    found = alone(*rows)
    assert spans(found) == [(1, 1), (2, 2), (3, 3)] and found.how == HOW[1]
    other = [rows[0], rows[1], rows[2] | {"base_predictions_sha256": "other samples"}]
    assert spans(alone(*other)) == [(1, 2), (2, 3), (1, 3)]
    assert alone(*other).how == HOW[2]


def scores(values, name="sample"):
    values = np.asarray(values, float).tolist()
    return {Row(f"{name} {i}", "", "", ("",)): value for i, value in enumerate(values)}


def test_the_same_samples_are_tested_where_they_are_known():
    random = np.random.default_rng(0)
    hard = random.normal(50, 20, SAMPLES)
    all_scores = [scores(hard), scores(hard - 3 + random.normal(0, 2, SAMPLES)), scores(hard)]
    rows = [row(50, 45, 55), row(47, 42, 52), row(50, 45, 55)]
    found = rank(rows, all_scores)
    assert spans(found) == [(1, 2), (3, 3), (1, 2)] and found.how == HOW[0]
    partly = rank(rows, [all_scores[0], None, all_scores[2]])
    assert spans(partly) == [(1, 3)] * 3 and partly.how == HOW[2]


def test_rows_without_shared_samples_are_not_paired():
    rows = [row(50, 45, 55), row(47, 42, 52)]
    there = scores(np.zeros(SAMPLES), "other")
    assert rank(rows, [scores(np.ones(SAMPLES)), there]).how == HOW[2]


def test_equal_methods_are_wrongly_told_apart_in_few_boards():
    random = np.random.default_rng(1)
    boards, wrong = 20, 0
    for _ in range(boards):
        drawn = random.normal(50, 10, (5, SAMPLES))
        rows = [row(float(one.mean()), 0, 0) for one in drawn]
        wrong += bool(rank(rows, [scores(one) for one in drawn]).better)
    assert wrong <= 4  # 5 % of the boards, and three standard errors


def test_a_better_method_is_never_ranked_below_a_worse_one():
    random = np.random.default_rng(2)
    values = random.normal(50, 10, 12)
    rows = [row(float(v), float(v) - 4, float(v) + 4) for v in values]
    found = alone(*rows)
    order = np.argsort(-values)
    firsts, lasts = np.array(found.first)[order], np.array(found.last)[order]
    assert (np.diff(firsts) >= 0).all() and (np.diff(lasts) >= 0).all()
    assert firsts[0] == 1 and lasts[-1] == 12


@pytest.mark.parametrize(
    ("faster", "expected"),
    [((0.5, 0.49, 0.51), [False, True]), ((0.95, 0.8, 1.1), [False, False])],
)
def test_a_row_is_beaten_only_when_both_intervals_say_so(faster, expected):
    ratio, lo, hi = faster
    rows = [
        row(90, 89, 91, lat_ratio=ratio, lat_ratio_ci_lo=lo, lat_ratio_ci_hi=hi),
        row(50, 49, 51, lat_ratio=1.0, lat_ratio_ci_lo=0.99, lat_ratio_ci_hi=1.01),
    ]
    assert beaten(rows, alone(*rows).better, "lat_ratio") == expected
    near = [rows[0], rows[1] | {"value": 89.5, "ci_lo": 80, "ci_hi": 99}]
    assert beaten(near, alone(*near).better, "lat_ratio") == [False, False]


def test_equal_answers_at_a_lower_cost_beat_and_vanilla_costs_one():
    rows = [
        row(70, 60, 80, "vanilla", predictions_sha256="s"),
        row(70, 60, 80, predictions_sha256="s", lat_ratio=2.0, lat_ratio_ci_lo=1.9,
        lat_ratio_ci_hi=2.1,
            mem_ratio=1.005),
    ]  # fmt: skip
    better = alone(*rows).better
    assert beaten(rows, better, "lat_ratio") == [False, True]
    assert beaten(rows, better, "mem_ratio") == [False, False]  # within what a reading repeats
    unmeasured = [rows[0], rows[1] | {"lat_ratio": None}]
    assert beaten(unmeasured, better, "lat_ratio") == [False, False]
