"""Intervals of mean scores: they contain the truth with their stated probability, and never
collapse."""

import math

import numpy as np
import pytest

from bench.statistics import scores


def test_the_interval_of_many_scores_agrees_with_the_formula():
    values = np.random.default_rng(0).normal(50, 10, 400)
    estimate = scores.mean(values, seed=1)
    assert estimate.stderr == pytest.approx(np.std(values, ddof=1) / 20)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.lo == pytest.approx(values.mean() - 1.96 * 0.5, abs=0.15)
    assert estimate.how == "bootstrap over samples"
    assert estimate == scores.mean(values, seed=1)


@pytest.mark.parametrize("right", [32, 31, 25])
def test_few_wrong_answers_have_clopper_and_pearsons_interval(right):
    n = 32
    estimate = scores.mean([100.0] * right + [0.0] * (n - right))

    def at_least(k: int, p: float) -> float:
        return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))

    assert at_least(right, estimate.lo / 100) == pytest.approx(0.025, abs=0.002)
    assert 1 - at_least(right + 1, estimate.hi / 100) == pytest.approx(0.025, abs=0.002) or (
        right == n and estimate.hi == 100
    )


def test_one_score_says_little_and_none_is_an_error():
    one = scores.mean([50.0])
    assert one.lo < 2 and one.hi > 98
    assert scores.mean([120.0]) == (120.0, None, None, None, "")
    with pytest.raises(ValueError):
        scores.mean([])


@pytest.mark.parametrize("share", [0.6, 0.9, 0.98])
def test_intervals_hold_the_truth(share, monkeypatch):
    monkeypatch.setattr(scores, "DRAWS", 50_000)
    random = np.random.default_rng(0)
    held = 0
    for trial in range(100):
        estimate = scores.mean((random.random(32) < share) * 100.0, seed=trial)
        held += estimate.lo <= 100 * share <= estimate.hi
    assert held >= 90  # of 95 expected, less two standard errors


def test_questions_on_one_document_are_one_draw():
    random = np.random.default_rng(0)
    held = {True: 0, False: 0}
    documents = np.repeat(np.arange(24), 8).tolist()
    for trial in range(60):
        known = random.beta(1, 1, 24)  # how easy a document's eight questions are
        right = (random.random((24, 8)) < known[:, None]).ravel() * 100.0
        for together in held:
            estimate = scores.mean(right, documents if together else None, trial)
            held[together] += estimate.lo <= 50 <= estimate.hi
    assert held[True] >= 52 and held[False] < held[True]
    assert scores.mean(right, documents).how == "bootstrap over 24 documents"


def test_a_paired_difference_is_surer_than_two_means():
    base = np.random.default_rng(0).uniform(0, 100, 200)
    better = base + np.random.default_rng(1).normal(2, 1, 200)
    difference = scores.difference(better, base)
    assert difference.lo > 0
    with pytest.raises(ValueError):
        scores.difference([1, 2], [1])


def test_equal_scores_may_differ_on_other_samples():
    few, many = (scores.difference([80.0] * n, [80.0] * n) for n in (32, 512))
    assert few.hi == pytest.approx(10.9, abs=0.1) and few.lo == pytest.approx(-10.9, abs=0.1)
    assert many.hi == pytest.approx(0.72, abs=0.02)


def test_the_smallest_difference_that_is_found_is_found_four_times_in_five():
    random = np.random.default_rng(0)
    noise = random.normal(0, 10, (200, 64))
    least = scores.detectable(*np.array([-1.96, 1.96]) * 10 / 8)
    found = 0
    for values in noise[:60] + least:
        found += scores.difference(values, np.zeros(64)).lo > 0
    assert 40 <= found <= 56


def test_mcnemar_against_the_binomial():
    a, b = [1] * 9 + [0] * 1 + [1] * 20, [0] * 9 + [1] * 1 + [1] * 20
    assert scores.mcnemar(a, b) == pytest.approx(2 * (1 + 10) / 2**10)
    assert scores.mcnemar(a, a) == 1.0
    with pytest.raises(ValueError):
        scores.mcnemar([0.5], [1])


def test_paired_tests_take_documents_as_units():
    a, b = [100.0] * 12, [0.0] * 12
    assert scores.paired_p(a, b) == scores.mcnemar([1] * 12, [0] * 12)
    assert scores.paired_p(a, b, ["one"] * 6 + ["two"] * 6) > 0.3


def test_few_losses_have_an_interval_without_bounds():
    losses = [2.1, 2.4, 1.9, 2.6]
    bounded, free = (scores.mean(losses, bounded=bounded) for bounded in (True, False))
    assert bounded.how.startswith("distribution-free") and bounded.hi > 10
    assert free.how == "Student's t over samples"
    half = 3.182 * np.std(losses, ddof=1) / 2
    assert (free.lo, free.hi) == pytest.approx((2.25 - half, 2.25 + half), abs=1e-3)
    assert scores.difference(losses, losses[::-1], bounded=False).how == free.how
    clustered = scores.mean(losses, ["a", "a", "b", "b"], bounded=False)
    assert clustered.how == "Student's t over 2 documents"
    assert scores.mean(losses * 4, bounded=False).how == "bootstrap over samples"
