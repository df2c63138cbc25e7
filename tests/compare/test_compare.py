"""Comparing two rows: the figures, the verdicts, and how sure they are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bench.compare.compare import (
    Difference,
    holm_corrected,
    kv_held,
    memory,
    parse_limit,
    quality,
    time,
)
from bench.statistics import paired, scores
from tests import made

QUIET = paired.Ratio(0.5, 0.49, 0.51, 0.0001, 40)


# --- ratio of ratios ---------------------------------------------------------------------------


def test_ratio_of_ratios_of_known_values():
    both = paired.ratio_of_ratios(QUIET, paired.Ratio(1.0, 0.98, 1.02, 1.0, 30))
    assert math.isclose(both.ratio, 2.0) and both.n == 30
    width = math.hypot(math.log(1.0 / 0.98), math.log(0.51 / 0.5))
    assert math.isclose(both.ci_lo, 2 * math.exp(-width)) and both.p == 1 / (1 + paired.FLIPS)
    same = paired.ratio_of_ratios(QUIET, QUIET)
    assert same.ratio == 1 and same.p == 1 and same.ci_lo < 1 < same.ci_hi


def test_too_few_pairs_on_either_side_bound_nothing():
    few = paired.Ratio(0.5, 0.0, math.inf, 0.2, 5)
    for sides in itertools.permutations([few, QUIET]):
        assert paired.ratio_of_ratios(*sides)[1:] == (0.0, math.inf, 1.0, 5)


@pytest.mark.parametrize("hi", [0.95, 0.99, 1.0001, 1.05])
def test_its_p_is_below_005_exactly_when_the_interval_excludes_1(hi):
    exact = paired.Ratio(1.0, 1.0, 1.0, 1.0, 40)
    found = paired.ratio_of_ratios(exact, paired.Ratio(0.9, 0.8, hi, 0.5, 40))
    assert (found.p < 0.05) == (found.ci_hi < 1)


# --- figures -----------------------------------------------------------------------------------


def judge(difference):
    return holm_corrected([difference])[0]


@pytest.mark.parametrize(
    ("a", "b", "verdict"), [(0.5, 0.4, "better"), (0.5, 0.6, "worse"), (0.5, 0.5, "same")]
)
def test_latency_is_a_ratio_of_ratios(a, b, verdict):
    rows = [made.full(**made.timing(r, seed=i)) for i, r in enumerate((a, b))]
    found = judge(time("latency", *rows))
    assert found.verdict == verdict and found.n == 40
    assert found.lo < (b / a - 1) * 100 < found.hi
    assert math.isclose(found.change, 100 * (rows[1]["lat_ratio"] / rows[0]["lat_ratio"] - 1))


def test_vanilla_is_one_by_definition_on_either_side():
    vanilla, vcc = made.full(method="vanilla"), made.full(**made.timing(0.5))
    forth, back = judge(time("latency", vanilla, vcc)), judge(time("latency", vcc, vanilla))
    assert forth.verdict == "better" and math.isclose(forth.change, 100 * (vcc["lat_ratio"] - 1))
    assert back.verdict == "worse" and math.isclose(back.change, 100 * (1 / vcc["lat_ratio"] - 1))
    assert back.lo < back.change < back.hi and forth.p == back.p == vcc["lat_ratio_p"]


def test_time_per_token_and_bytes_held_are_compared_as_those_of_a_call():
    columns = made.timing(0.5)
    a = made.full(**{f"tpot_{name[4:]}": x for name, x in columns.items() if name[:4] == "lat_"})
    a |= {"kv_bytes_held": 8 << 20}
    b = a | {"kv_bytes_held": 4 << 20}
    same, fewer = judge(time("tpot", a, b)), kv_held(a, b)
    assert (same.figure, same.a, same.b) == ("tpot", a["tpot_ratio"], a["tpot_ratio"])
    assert time("latency", a, b).note == "A: not measured"
    assert (fewer.figure, fewer.change, fewer.verdict) == ("kv_held", -50, "better")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"host_id": "there"}, "measured on different hosts"),
        ({"lat_ratio": None, "status": "oom_host"}, "B: oom_host"),
        ({"lat_ratio": None, "lat_reason": "vanilla can't"}, "B: vanilla can't"),
    ],
)
def test_latency_that_cannot_be_compared_says_why(change, note):
    a, b = made.full(**made.timing(0.5)), made.full(**made.timing(0.5)) | change
    found = judge(time("latency", a, b))
    assert found.note == note and found.change is None and found.verdict is None


def test_memory_of_another_host_forms_no_ratio():
    a, b = made.full(), made.full(host_id="h2-there")
    assert memory(a, b).note == "measured on different hosts, or with an older id of one host"
    assert memory(a, b | {"host_id": "there"}).note == "measured on different hosts"
    assert memory(a, a).change == 0


def test_a_host_of_unknown_noise_finds_no_equality():
    a, b = (made.full(**made.timing(0.5, seed=i)) for i in range(2))
    assert judge(time("latency", a, b | {"lat_aa_noise_pct": None})).verdict == "undecided"


@pytest.mark.parametrize(
    ("mib", "verdict"), [(90, "better"), (110, "worse"), (101, "same"), (99, "same")]
)
def test_memory_counts_from_two_percent_and_one_mib(mib, verdict):
    found = judge(memory(made.full(), made.full(rss_peak_delta_bytes=mib << 20)))
    assert found.verdict == verdict and found.lo is None
    small = made.full(rss_peak_delta_bytes=1 << 20), made.full(rss_peak_delta_bytes=3 << 19)
    found = judge(memory(*small))
    assert found.verdict == "same" and found.note.startswith("a change counts from 1 MiB; this is")


def test_memory_read_in_two_ways_is_not_compared():
    found = memory(made.full(), made.full(mem_method="smaps"))
    assert found.note == "read in two ways: VmHWM, smaps" and found.change is None
    gone = made.full(rss_peak_delta_bytes=None, status="oom_host")
    assert memory(made.full(), gone).note == "B: oom_host"


def test_right_and_wrong_answers_are_judged_by_mcnemar():
    a, b = [100.0] * 20 + [0.0] * 20, [100.0] * 40
    found = judge(quality(a, b, True))
    assert found.p == scores.mcnemar([1] * 20 + [0] * 20, [1] * 40)
    assert found.verdict == "better" and found.change == 50 and found.change_pct == 100
    assert judge(quality(a, b, False)).verdict == "worse"


def test_four_answers_prove_nothing():
    found = judge(quality([0.0] * 4, [100.0] * 4, True))
    assert found.lo < found.change and found.p > 0.05
    assert found.verdict == "undecided" and not found.sure


def test_scores_are_judged_by_swapping_them():
    random = np.random.default_rng(0)
    a = random.uniform(20, 40, 200)
    assert judge(quality(a, a + random.normal(3, 5, 200), True)).verdict == "better"
    assert judge(quality(a, a + random.normal(0, 0.5, 200), True)).verdict == "same"
    assert judge(quality(a, a + random.normal(0, 20, 200), True)).verdict == "undecided"
    assert judge(quality(a, a + random.normal(3, 5, 200), True, 10.0)).verdict == "same"


def test_equal_scores_of_few_samples_are_no_proof_of_equality():
    few = judge(quality([30.0] * 32, [30.0] * 32, True))
    assert few.verdict == "undecided" and 10 < few.hi < 12
    assert few.note == "every sample scores the same"
    assert judge(quality([30.0] * 400, [30.0] * 400, True)).verdict == "same"
    one = judge(quality([30.0], [40.0], True))
    assert one.verdict == "undecided" and not one.sure


def test_of_many_comparisons_a_chance_find_is_undecided():
    a = made.full(**made.timing(0.5))
    ours = time("latency", a, a)._replace(change=5.0, lo=1.0, hi=9.0, p=0.03, verdict="worse")
    assert judge(ours).verdict == "worse"
    many = holm_corrected([ours, *[ours._replace(p=0.5, verdict="undecided")] * 9])
    assert many[0].p == pytest.approx(0.3) and many[0].verdict == "undecided"
    assert many[0].note == "p = 0.3 after Holm's correction"


# --- limits ------------------------------------------------------------------------------------


def test_a_limit_needs_the_point_beyond_it_and_a_sure_change():
    found = Difference("latency", 1, 1, 8.0, 1.0, 15.0, change_pct=8.0, p=0.01, n=40)
    over = parse_limit("latency>5%")
    assert over.exceeded_by(found)
    assert not over.exceeded_by(found._replace(lo=-1.0))
    assert not over.exceeded_by(found._replace(p=0.2))
    assert not over.exceeded_by(found._replace(change_pct=4.9))
    assert not over.exceeded_by(found._replace(figure="memory"))
    drop = found._replace(figure="quality", change=-3.0, lo=-5.0, hi=-1.0, change_pct=-9.0)
    assert parse_limit("quality < -2 %").exceeded_by(drop) and not parse_limit(
        "quality > 2%"
    ).exceeded_by(drop)
