"""Comparing two rows: the figures, the verdicts, and their certainty."""

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
    unpaired_quality,
)
from bench.statistics import paired, scores
from tests import made

QUIET = paired.Ratio(0.5, 0.49, 0.51, 0.0001, 40)


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


def timed(ratio, seed=0, **more):
    return made.full(**made.timing(ratio, seed=seed)) | more


def held(mib, **more):
    return made.full(rss_peak_delta_bytes=mib << 20, **more)


def tokens(kv_mib):
    """Time per token in place of latency, and the bytes of a cache."""
    columns = made.timing(0.5)
    named = {f"tpot_{name[4:]}": x for name, x in columns.items() if name[:4] == "lat_"}
    return made.full(**named, kv_bytes_held=kv_mib << 20)


RANDOM = np.random.default_rng(0)
SCORES = RANDOM.uniform(20, 40, 200)
HALF, ALL = [100.0] * 20 + [0.0] * 20, [100.0] * 40
VANILLA = made.full(method="vanilla")
CHANGED = time("latency", timed(0.5), timed(0.5))._replace(
    change=5.0, lo=1.0, hi=9.0, p=0.03, verdict="worse"
)
DIFFERENCES = {
    "less time": time("latency", timed(0.5), timed(0.4, 1)),
    "more time": time("latency", timed(0.5), timed(0.6, 1)),
    "the same time": time("latency", timed(0.5), timed(0.5, 1)),
    "against vanilla, which is one": time("latency", VANILLA, timed(0.5)),
    "vanilla against it": time("latency", timed(0.5), VANILLA),
    "time per token": time("tpot", tokens(8), tokens(4)),
    "latency of rows with time per token": time("latency", tokens(8), tokens(4)),
    "bytes held": kv_held(tokens(8), tokens(4)),
    "another host": time("latency", timed(0.5), timed(0.5, host_id="there")),
    "out of memory": time("latency", timed(0.5), timed(0.5, lat_ratio=None, status="oom_host")),
    "no ratio": time("latency", timed(0.5), timed(0.5, lat_ratio=None, lat_reason="vanilla can't")),
    "unknown noise": time("latency", timed(0.5), timed(0.5, 1, lat_aa_noise_pct=None)),
    "memory of another host": memory(held(100), held(100, host_id="there")),
    "memory of another id": memory(held(100), held(100, host_id="h2-there")),
    "less memory": memory(held(100), held(90)),
    "more memory": memory(held(100), held(110)),
    "a percent more": memory(held(100), held(101)),
    "a percent less": memory(held(100), held(99)),
    "half a MiB more": memory(
        made.full(rss_peak_delta_bytes=1 << 20), made.full(rss_peak_delta_bytes=3 << 19)
    ),
    "memory read in two ways": memory(held(100), held(100, mem_method="smaps")),
    "no memory": memory(held(100), made.full(rss_peak_delta_bytes=None, status="oom_host")),
    "more right answers": quality(HALF, ALL, True),
    "more where less is better": quality(HALF, ALL, False),
    "four answers": quality([0.0] * 4, [100.0] * 4, True),
    "higher scores": quality(SCORES, SCORES + RANDOM.normal(3, 5, 200), True),
    "equal scores": quality(SCORES, SCORES + RANDOM.normal(0, 0.5, 200), True),
    "scattered scores": quality(SCORES, SCORES + RANDOM.normal(0, 20, 200), True),
    "higher scores within a margin": quality(SCORES, SCORES + RANDOM.normal(3, 5, 200), True, 10.0),
    "the same score of few samples": quality([30.0] * 32, [30.0] * 32, True),
    "the same score of many": quality([30.0] * 400, [30.0] * 400, True),
    "one sample": quality([30.0], [40.0], True),
    "a small change": CHANGED,
}  # fmt: skip


def told(title, found):
    verdict = found.verdict or "no verdict"
    text = f"{title}: {verdict}{'' if found.sure else ', not sure'}"
    if found.change is not None:
        ends = "" if found.lo is None else f" ({found.lo:+.1f} … {found.hi:+.1f})"
        chance = "" if found.p is None else f", p = {found.p:.1g}"
        text += f", {found.change:+.1f}{ends} {found.unit}{chance}"
    return f"{text}; {found.note}\n" if found.note else f"{text}\n"


def test_each_figure_has_its_verdict(snapshot):
    judged = {title: holm_corrected([found])[0] for title, found in DIFFERENCES.items()}
    many = holm_corrected([CHANGED, *[CHANGED._replace(p=0.5, verdict="undecided")] * 9])
    judged["the same among ten"] = many[0]
    snapshot("verdicts", "".join(told(title, found) for title, found in judged.items()))


def test_right_and_wrong_answers_are_judged_by_mcnemar():
    assert quality(HALF, ALL, True).p == scores.mcnemar([1] * 20 + [0] * 20, [1] * 40)


def test_a_limit_needs_the_point_beyond_it_and_a_sure_change():
    found = Difference("latency", 1, 1, 8.0, 1.0, 15.0, change_pct=8.0, p=0.01, n=40)
    over = parse_limit("latency>5%")
    assert over.exceeded_by(found)
    for other in ({"lo": -1.0}, {"p": 0.2}, {"change_pct": 4.9}, {"figure": "memory"}):
        assert not over.exceeded_by(found._replace(**other))
    drop = found._replace(figure="quality", change=-3.0, lo=-5.0, hi=-1.0, change_pct=-9.0)
    assert parse_limit("quality < -2 %").exceeded_by(drop)
    assert not parse_limit("quality > 2%").exceeded_by(drop)


def test_scores_without_their_samples_by_hand():
    """Newcombe's interval: 56 of 70 against 48 of 80, whose own are by Wilson's method."""
    a = {"value": 60.0, "ci_lo": 49.05, "ci_hi": 70.05, "n_scored": 80, "higher_is_better": True}
    b = {"value": 80.0, "ci_lo": 69.16, "ci_hi": 87.71, "n_scored": 70, "higher_is_better": True}
    found = unpaired_quality(a, b)
    assert (found.change, found.n, found.verdict) == (20.0, 70, "better")
    assert (found.lo, found.hi) == (pytest.approx(5.24, abs=0.05), pytest.approx(33.39, abs=0.05))
    assert found.p < 0.05
    assert unpaired_quality(b, a).verdict == "worse"
    skewed = a | {"value": 50.0, "ci_lo": 40.0, "ci_hi": 51.0}, b | {"value": 57.0, "ci_lo": 55.0}
    found = unpaired_quality(skewed[0], skewed[1] | {"ci_hi": 67.0})  # 7 - 2.2 … 7 + 14.1
    assert found.verdict == "better" and found.lo == pytest.approx(4.76, abs=0.01)
    skewed = a | {"value": 50.0, "ci_lo": 49.0}, b | {"value": 57.0, "ci_lo": 47.0, "ci_hi": 59.0}
    found = unpaired_quality(skewed[0] | {"ci_hi": 60.0}, skewed[1])  # 7 - 14.1 … 7 + 2.2
    assert found.verdict == "undecided" and found.lo == pytest.approx(-7.14, abs=0.01)
    unknown = unpaired_quality(a, b | {"ci_lo": None})
    assert (unknown.lo, unknown.verdict) == (None, "undecided")
