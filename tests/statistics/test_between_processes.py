"""The interval of a ratio whose pairs were timed in several processes."""

import math

import numpy as np
import pytest

from bench.statistics import paired
from bench.status import Verdict


def timed(sd: float, seed: int, n: int = 4, pairs: int = 10, true: float = 1.0):
    """Samples of both arms, and the process of each: 2 % of noise within, `sd` between."""
    random = np.random.default_rng(seed)
    process = np.repeat(np.arange(n), pairs)
    logs = math.log(true) + random.normal(0, 0.02, n * pairs) + random.normal(0, sd, n)[process]
    return 1e8 * np.exp(logs), np.full(n * pairs, 1e8), process


def held(sd: float, n: int, trials: int) -> list[paired.Ratio]:
    return [paired.ratio_over_processes(*timed(sd, seed, n)).ratio for seed in range(trials)]


@pytest.fixture
def quickly(monkeypatch):
    """The pairs' own interval by their standard error: a sign-flip test takes too long here."""

    def normal(method, base, seed=0):
        logs = np.log(method / base)
        middle = float(np.median(logs))
        reach = 1.96 * 1.2533 * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        ends = (math.exp(middle - reach), math.exp(middle + reach))
        p = math.erfc(abs(middle) / reach * 1.96 / math.sqrt(2))
        return paired.Ratio(math.exp(middle), *ends, p, len(method))

    monkeypatch.setattr(paired, "paired_ratio", normal)


@pytest.mark.parametrize("n", [4, 1])
@pytest.mark.parametrize("sd", [0.0, 0.01, 0.05, math.log(1.1)])
def test_the_interval_holds_the_truth_whatever_the_spread_between_processes(sd, n, quickly):
    found = held(sd, n, 3000)
    assert np.mean([ratio.ci_lo <= 1 <= ratio.ci_hi for ratio in found]) >= 0.94
    assert np.mean([ratio.p < 0.05 for ratio in found]) <= 0.06
    if n == 1 and sd <= 0.05:
        assert {paired.verdict(ratio) for ratio in found} == {Verdict.UNDECIDED}


@pytest.mark.parametrize(("true", "word"), [(0.5, Verdict.FASTER), (0.9, Verdict.UNDECIDED)])
def test_one_process_decides_only_what_no_other_would_change(true, word):
    ratio = paired.ratio_over_processes(*timed(0.0, 1, n=1, true=true)).ratio
    assert paired.verdict(ratio) == word
    assert ratio.ci_hi / ratio.ratio >= 1.1**1.9


def test_too_few_pairs_bound_nothing_in_one_process_either():
    ratio = paired.ratio_over_processes(*timed(0.0, 0, n=1, pairs=5, true=0.2)).ratio
    assert (ratio.ci_lo, ratio.ci_hi) == (0.0, math.inf)
    assert paired.verdict(ratio) == Verdict.UNDECIDED


def test_an_interval_is_widened_to_what_another_way_gives():
    ratio = paired.Ratio(0.8, 0.7, 0.9, 0.001, 40)
    assert paired.widened(ratio, 0.75) == ratio
    assert paired.widened(ratio, 0.95) == ratio._replace(ci_hi=0.95)
    assert paired.widened(ratio, 1.2) == ratio._replace(ci_hi=1.2, p=1.0)


@pytest.mark.parametrize("sd", [0.0, 0.05])
def test_it_is_never_narrower_than_that_of_all_pairs(sd):
    for seed in range(10):
        method, base, process = timed(sd, seed, true=0.9)
        one = paired.paired_ratio(method, base)
        ratio = paired.ratio_over_processes(method, base, process).ratio
        assert ratio.ci_lo <= one.ci_lo and ratio.ci_hi >= one.ci_hi and ratio.p >= one.p
        assert ratio.ci_lo <= ratio.ratio <= ratio.ci_hi
        assert (ratio.p <= 0.05) == (not ratio.ci_lo <= 1 <= ratio.ci_hi)


def test_the_spread_is_that_of_the_processes_medians():
    method = [110] * 5 + [90] * 5
    shared = paired.ratio_over_processes(method, [100] * 10, [0] * 5 + [1] * 5)
    assert shared.processes == 2
    assert shared.ratio.ratio == pytest.approx(math.sqrt(1.1 * 0.9))
    assert shared.sd_pct == pytest.approx(100 * (math.exp(math.log(1.1 / 0.9) / 2**0.5) - 1))
    with pytest.raises(ValueError, match="10 pairs, and processes of 3"):
        paired.ratio_over_processes(method, [100] * 10, [0, 1, 2])


@pytest.mark.parametrize(("df", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)])
def test_students_t_is_that_of_the_tables(df, t):
    assert paired.student_t_quantile(df) == pytest.approx(t, abs=5e-4)
    assert paired.student_t_p(0, df) == 1
    assert paired.student_t_p(t, df) == pytest.approx(0.05, abs=1e-4)
