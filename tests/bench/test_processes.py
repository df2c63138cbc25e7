"""A ratio of pairs that several processes timed, and how they share the pairs."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from bench import between, judge, processes, rowcheck, show, stats
from bench.cell import PLANS
from bench.children import share
from bench.supervisor import Outcome
from tests.bench import made

SECOND = 1_000_000_000


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
        return stats.Ratio(middle, math.inf, 0.0, 0.0, len(method))

    monkeypatch.setattr(stats, "paired_ratio", none)
    found = [between.paired_ratio(*timed(sd, seed)).ratio for seed in range(1500)]
    assert np.mean([ratio.ci_lo <= 1 <= ratio.ci_hi for ratio in found]) >= 0.93
    assert np.mean([ratio.p < 0.05 for ratio in found]) <= 0.07


def test_one_process_s_interval_would_not_hold_it():
    found = [stats.paired_ratio(*timed(0.05, seed)[:2]) for seed in range(40)]
    assert sum(ratio.ci_lo <= 1 <= ratio.ci_hi for ratio in found) < 30


@pytest.mark.parametrize("sd", [0.0, 0.05])
def test_it_is_never_narrower_than_that_of_all_pairs(sd):
    for seed in range(10):
        method, base, process = timed(sd, seed, true=0.9)
        one, shared = stats.paired_ratio(method, base), between.paired_ratio(method, base, process)
        ratio = shared.ratio
        assert ratio.ci_lo <= one.ci_lo and ratio.ci_hi >= one.ci_hi and ratio.p >= one.p
        assert ratio.ci_lo <= ratio.ratio <= ratio.ci_hi
        assert (ratio.p <= 0.05) == (not ratio.ci_lo <= 1 <= ratio.ci_hi)


def test_the_spread_is_that_of_the_processes_medians():
    method = [110] * 5 + [90] * 5
    shared = between.paired_ratio(method, [100] * 10, [0] * 5 + [1] * 5)
    assert shared.processes == 2
    assert shared.ratio.ratio == pytest.approx(math.sqrt(1.1 * 0.9))
    assert shared.sd_pct == pytest.approx(100 * (math.exp(math.log(1.1 / 0.9) / 2**0.5) - 1))
    with pytest.raises(ValueError, match="10 pairs, and processes of 3"):
        between.paired_ratio(method, [100] * 10, [0, 1, 2])


def test_without_processes_nothing_changes():
    method, base, _ = timed(0.01, 0)
    for process in (None, np.zeros(40)):
        shared = between.paired_ratio(method, base, process)
        assert shared == (stats.paired_ratio(method, base), 1, None)


@pytest.mark.parametrize(("df", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)])
def test_students_t_is_that_of_the_tables(df, t):
    assert between.t_quantile(df) == pytest.approx(t, abs=5e-4)
    assert between.t_p(0, df) == 1 and between.t_p(t, df) == pytest.approx(0.05, abs=1e-4)


def test_four_processes_share_the_pairs_and_the_budget():
    shares = share.planned(PLANS["quick"], 0.6, 4.0, 1)
    assert [one.pairs for one in shares] == [8, 8, 7, 7]
    assert [one.done for one in shares] == [0, 8, 16, 23] and shares[0].reason is None
    assert sum(one.pairs for one in share.planned(PLANS["quick"], 0.01, 1.0, 1)) == 40


@pytest.mark.parametrize(
    ("measure", "pair_s", "begin_s", "pairs", "reason"),
    [
        ("glance", 0.01, 0.1, 12, "the measure asks for one process"),
        ("quick", 8.0, 1.0, 3, "a pair takes 8.0 s of a budget of 30 s"),
        (
            "quick",
            1.0,
            5.0,
            30,
            "more processes would take 15 s of a budget of 30 s",
        ),
    ],
)
def test_one_process_times_all_pairs_and_says_why(measure, pair_s, begin_s, pairs, reason):
    [alone] = share.planned(PLANS[measure], pair_s, begin_s, 1)
    assert (alone.pairs, alone.total) == (pairs, pairs) and alone.reason.startswith(reason)


def part(number: int, **more):
    lists = {name: [number] * 2 for name in processes.LISTS[:-1]}
    faults = dict.fromkeys(processes.FAULTS, 4 * number)
    return {**lists, **faults, "wall_samples_ns": None, "pair_order": "MV", **more}


def test_the_samples_of_all_processes_come_into_one_row():
    shares = [asdict(one) for one in share.planned(PLANS["quick"], 0.1, 0.1, 1)[1:3]]
    asked, told = [], []

    def child(request, progress):
        asked.append(request)
        progress("load", 0, 0)
        progress("latency", 1, 4)
        if not request:
            return Outcome("ok", "latency", result=part(1, shares=shares, answer=[1.0], load_ns=7))
        return Outcome("ok", "latency", result=part(2, process_reason=None))

    outcome = processes.shared(child, lambda *words: told.append(words))
    assert asked == [{}, *({"share": one, "answer": [1.0]} for one in shares)]
    assert [stage for stage, *_ in told] == ["load", "latency", "latency", "latency"]
    columns = outcome.result
    assert columns["pair_process"] == [0, 0, 1, 1, 2, 2] and columns["pair_order"] == "MVMVMV"
    assert columns["lat_samples_ns"] == [1, 1, 2, 2, 2, 2] and columns["wall_samples_ns"] is None
    assert columns["load_ns"] == 7 and columns["lat_page_faults"] == 7
    assert not {"shares", "answer"} & columns.keys()


def test_a_further_process_that_ends_badly_ends_the_cell():
    def child(request, progress):
        if request:
            return Outcome("error", "latency", "Cheat: answers otherwise")
        return Outcome("ok", "latency", result=part(1, shares=[{"process": 1}], answer=[1.0]))

    outcome = processes.shared(child, None)
    assert outcome.status == "error" and not outcome.result
    assert outcome.detail == "Cheat: answers otherwise\nin process 2 of 2"


def test_a_row_of_several_processes_is_consistent_and_says_how_they_differ():
    method, base, process = timed(0.03, 1, true=0.8)
    samples = {
        "lat_samples_ns": method.astype(int).tolist(),
        "base_samples_ns": base.astype(int).tolist(),
        "aa_first_samples_ns": [100] * 8,
        "aa_second_samples_ns": [101] * 8,
        "pair_process": process.tolist(),
    }
    row = made.full(**samples, **judge.latency(samples, 0))
    assert row["n_processes"] == 4 and row["process_sd_pct"] > 0.5
    assert not list(rowcheck._derived(row))
    assert show.between(row) == f"±{row['process_sd_pct']:.1f} % (4 processes)"
    [fault, *_] = rowcheck._derived(row | {"pair_process": None})
    assert fault[0] == "wrong"


def test_an_older_row_keeps_its_interval_and_says_that_it_is_of_one_process():
    row = made.full(**made.timing(0.8))
    assert row["n_processes"] == 1
    older = row | {"n_processes": None}
    assert not list(rowcheck._derived(older))
    assert show.between(older) == "not seen: an older row, of one process"
    told = show.between(row | {"process_reason": "a pair takes 8.0 s of a budget of 30 s"})
    assert told == "not seen: a pair takes 8.0 s of a budget of 30 s"
