"""The statistics have their stated properties, on noise like a shared machine's and on known
values."""

import itertools
import math

import numpy as np
import pytest

from bench.statistics import paired

PAIRS = 40


def noisy_calls(n: int, seed: int) -> np.ndarray:
    """Call times like those of a shared machine: lag-1 autocorrelation 0.8 and slow bursts."""
    random = np.random.default_rng(seed)
    noise = np.empty(n)
    noise[0] = 0.0
    steps = random.normal(0, 0.02, n)
    for i in range(1, n):
        noise[i] = 0.8 * noise[i - 1] + steps[i]
    for start in random.integers(0, n, n // 200):
        noise[start : start + random.integers(5, 60)] += random.uniform(0.1, 0.6)
    return 10e6 * np.exp(noise)


def replay(trials: int, pairs: int = PAIRS, slower_by: float = 0.0) -> list[paired.Ratio]:
    """Trials of coin-flipped pairs laid over one series of identical calls."""
    calls = noisy_calls(trials * pairs * 2, seed=1).reshape(trials, pairs, 2)
    heads = np.random.default_rng(2).random((trials, pairs)) < 0.5
    method = np.where(heads, calls[..., 0], calls[..., 1]) * (1 + slower_by)
    base = np.where(heads, calls[..., 1], calls[..., 0])
    return [paired.paired_ratio(m, b) for m, b in zip(method, base, strict=True)]


def test_replayed_series_is_as_noisy_as_it_should_be():
    logs = np.log(noisy_calls(20_000, seed=1))
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] >= 0.8


@pytest.fixture(scope="module")
def equal_arms() -> list[paired.Ratio]:
    return replay(trials=200)


def test_equal_arms_are_never_more_than_five_percent_called_different(equal_arms):
    verdicts = [paired.verdict(ratio) for ratio in equal_arms]
    assert sum(v in ("same", "undecided") for v in verdicts) >= 190
    assert sum(ratio.p < 0.05 for ratio in equal_arms) <= 19  # three standard errors above 10
    assert sum(ratio.ci_lo <= 1 <= ratio.ci_hi for ratio in equal_arms) >= 181


def test_slow_down_of_five_percent_is_found_nine_times_in_ten():
    verdicts = [paired.verdict(ratio) for ratio in replay(trials=60, slower_by=0.05)]
    assert verdicts.count("slower") >= 54
    assert "faster" not in verdicts


def test_p_value_is_that_of_all_flips():
    logs = np.random.default_rng(3).normal(0.02, 0.05, 11)
    flips = np.array(list(itertools.product((-1, 1), repeat=11)))
    exact = np.mean(np.abs(np.median(flips * logs, axis=1)) >= abs(np.median(logs)) - 1e-12)
    ratio = paired.paired_ratio(np.exp(logs), np.ones(11))
    assert ratio.p == pytest.approx(exact, abs=0.02)
    assert ratio.ratio == pytest.approx(math.exp(np.median(logs)))


@pytest.mark.parametrize("n", [10, 15, 40])
def test_interval_inverts_the_test(n):
    times = 1e7 * np.exp(np.random.default_rng(n).normal(0, 0.05, n))
    ratio = paired.paired_ratio(times, np.full(n, 1e7))
    for end, inside in ((ratio.ci_lo, 1.001), (ratio.ci_hi, 0.999)):
        assert paired.paired_ratio(times, np.full(n, 1e7 * end * inside)).p > 0.05
        assert paired.paired_ratio(times, np.full(n, 1e7 * end / inside)).p <= 0.05


@pytest.mark.parametrize("n", range(1, 10))
def test_few_pairs_bound_nothing(n):
    ratio = paired.paired_ratio(np.linspace(2.9e6, 3.1e6, n), np.full(n, 1e6))
    assert (ratio.ci_lo, ratio.ci_hi, ratio.n) == (0.0, math.inf, n)
    assert 0.05 < ratio.p <= 1
    assert paired.verdict(ratio) == "undecided"


def test_ratio_is_the_same_for_the_same_seed_and_mirrors():
    a, b = noisy_calls(40, 1), noisy_calls(40, 2)
    assert paired.paired_ratio(a, b, seed=5) == paired.paired_ratio(a, b, seed=5)
    there, back = paired.paired_ratio(a, b), paired.paired_ratio(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.ci_lo == pytest.approx(1 / back.ci_hi, rel=0.01)


def test_equal_ratios_give_an_interval_of_no_width():
    ratio = paired.paired_ratio([2e6] * 20, [1e6] * 20)
    assert ratio.ci_lo == pytest.approx(2, abs=1e-4) == ratio.ci_hi


@pytest.mark.parametrize("method, base", [([1], [1, 2]), ([], []), ([0], [1]), ([1], [-1])])
def test_ratio_refuses_what_are_no_pairs(method, base):
    with pytest.raises(ValueError):
        paired.paired_ratio(method, base)


@pytest.mark.parametrize(
    "interval, resolution_pct, expected",
    [
        ((1.05, 1.03, 1.08), 2.0, "slower"),
        ((0.95, 0.92, 0.97), 2.0, "faster"),
        ((1.05, 1.03, 1.08), 6.0, "undecided"),
        ((1.015, 1.01, 1.02), 2.0, "same"),
        ((1.0, 0.99, 1.01), 2.0, "same"),
        ((1.0, 0.99, 1.01), 2.1, "undecided"),
        ((1.0, 0.99, 1.01), None, "undecided"),
        ((1.05, 1.03, 1.08), None, "slower"),
        ((1.0, 0.97, 1.01), 2.0, "undecided"),
        ((1.05, 0.99, 1.12), 2.0, "undecided"),
    ],
)
def test_verdict(interval, resolution_pct, expected):
    assert paired.verdict(paired.Ratio(*interval, p=0.5, n=40), resolution_pct) == expected


def test_aa_noise_is_the_error_of_a_ratio_between_equals(equal_arms):
    calls = noisy_calls(4_000, seed=1).reshape(-1, 2)
    noise_pct = paired.aa_noise_pct(calls[:, 0], calls[:, 1], PAIRS)
    seen_pct = np.percentile([abs(ratio.ratio - 1) * 100 for ratio in equal_arms], 90)
    assert noise_pct == pytest.approx(seen_pct, rel=0.35)


def test_too_few_equal_pairs_give_no_noise_figure():
    assert paired.aa_noise_pct([1, 2, 3, 4], [1, 2, 3, 4], 40) is None
    assert paired.aa_noise_pct([], [], 40) is None
    assert paired.detectable_pct([1, 2, 3, 4], [1, 2, 3, 4], 40) is None


def test_detectable_slow_down_is_detected():
    calls = noisy_calls(4_000, seed=1).reshape(-1, 2)
    least_pct = paired.detectable_pct(calls[:, 0], calls[:, 1], PAIRS)
    assert least_pct is not None and 2 < least_pct < 6
    found = [paired.verdict(r) for r in replay(trials=40, slower_by=least_pct / 100)]
    assert found.count("slower") >= 24
    assert paired.detectable_pct(calls[:, 0], calls[:, 1], pairs=5) == math.inf


def test_summary():
    assert paired.summary([10, 20, 30, 40, 100]) == (30, None, None, None, 10, 10)
    assert paired.summary(range(1, 64)).p90_ns is None and paired.summary(range(64)).p90_ns == 57
    assert paired.summary(range(661)).p99_ns is None and paired.summary(range(662)).p99_ns == 654
    assert all(type(x) is int for x in paired.summary([1.5, 2.5] * 331))
    with pytest.raises(ValueError):
        paired.summary([])


def test_holm():
    assert paired.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert paired.holm([]) == []
