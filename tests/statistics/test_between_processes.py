"""The interval of a ratio whose pairs were timed in several processes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.statistics import between_processes, paired


def timed(sd: float, seed: int, n: int = 4, pairs: int = 10, true: float = 1.0):
    """Samples of both arms, and the process of each: 2 % of noise within, `sd` between."""
    random = np.random.default_rng(seed)
    process = np.repeat(np.arange(n), pairs)
    logs = math.log(true) + random.normal(0, 0.02, n * pairs) + random.normal(0, sd, n)[process]
    return 1e8 * np.exp(logs), np.full(n * pairs, 1e8), process


@pytest.mark.parametrize("sd", [0.0, 0.01, 0.05])
def test_the_interval_holds_the_truth_whatever_the_spread_between_processes(sd, monkeypatch):
    def none(method, base, seed=0):  # what all pairs give can only make the interval wider
        middle = math.exp(np.median(np.log(method / base)))
        return paired.Ratio(middle, math.inf, 0.0, 0.0, len(method))

    monkeypatch.setattr(paired, "paired_ratio", none)
    found = [between_processes.paired_ratio(*timed(sd, seed)).ratio for seed in range(1500)]
    assert np.mean([ratio.ci_lo <= 1 <= ratio.ci_hi for ratio in found]) >= 0.93
    assert np.mean([ratio.p < 0.05 for ratio in found]) <= 0.07


def test_one_process_s_interval_would_not_hold_it():
    found = [paired.paired_ratio(*timed(0.05, seed)[:2]) for seed in range(40)]
    assert sum(ratio.ci_lo <= 1 <= ratio.ci_hi for ratio in found) < 30


@pytest.mark.parametrize("sd", [0.0, 0.05])
def test_it_is_never_narrower_than_that_of_all_pairs(sd):
    for seed in range(10):
        method, base, process = timed(sd, seed, true=0.9)
        one, shared = (
            paired.paired_ratio(method, base),
            between_processes.paired_ratio(method, base, process),
        )
        ratio = shared.ratio
        assert ratio.ci_lo <= one.ci_lo and ratio.ci_hi >= one.ci_hi and ratio.p >= one.p
        assert ratio.ci_lo <= ratio.ratio <= ratio.ci_hi
        assert (ratio.p <= 0.05) == (not ratio.ci_lo <= 1 <= ratio.ci_hi)


def test_the_spread_is_that_of_the_processes_medians():
    method = [110] * 5 + [90] * 5
    shared = between_processes.paired_ratio(method, [100] * 10, [0] * 5 + [1] * 5)
    assert shared.processes == 2
    assert shared.ratio.ratio == pytest.approx(math.sqrt(1.1 * 0.9))
    assert shared.sd_pct == pytest.approx(100 * (math.exp(math.log(1.1 / 0.9) / 2**0.5) - 1))
    with pytest.raises(ValueError, match="10 pairs, and processes of 3"):
        between_processes.paired_ratio(method, [100] * 10, [0, 1, 2])


def test_without_processes_nothing_changes():
    method, base, _ = timed(0.01, 0)
    for process in (None, np.zeros(40)):
        shared = between_processes.paired_ratio(method, base, process)
        assert shared == (paired.paired_ratio(method, base), 1, None)


@pytest.mark.parametrize(("df", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)])
def test_students_t_is_that_of_the_tables(df, t):
    assert between_processes.student_t_quantile(df) == pytest.approx(t, abs=5e-4)
    assert between_processes.student_t_p(0, df) == 1 and between_processes.student_t_p(
        t, df
    ) == pytest.approx(0.05, abs=1e-4)
