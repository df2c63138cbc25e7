"""When a method keeps vanilla's quality, loses it, or the rows can't decide."""

import json

import pytest

from bench.rows.row_facts import (
    faster_as_good,
    keeps_quality,
    labelled,
    quality_verdict,
    stated_verdict,
)
from reports.lra_tables import difference_sds
from tests import made


def row(base, value, lo, hi, **more):
    return {
        "base_value": base, "value": value, "value_diff_ci_lo": lo, "value_diff_ci_hi": hi,
        "base_ci_lo": base - 5, "chance": 20.0, "lat_verdict": "faster", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "verdict", "keeps"),
    [
        ((80, 80, -0.5, 0.5), "kept", True),
        ((80, 84, 1, 7), "higher", True),
        ((80, 70, -14, -6), "lower", False),
        ((80, 79.5, -4, 3), "undecided", True),
        ((80, 78, -6, 2), "undecided", False),
        ((24, 23, -0.1, 0.1), "can't discriminate", False),
        ((24, 60, 30, 42), "higher", False),
        ((99.5, 99.4, -0.3, 0.1), "can't discriminate", True),
        ((99.5, 90, -14, -5), "lower", False),
    ],
)
def test_verdicts(figures, verdict, keeps):
    found = row(*figures)
    assert quality_verdict(found) == verdict
    assert keeps_quality(found) == keeps and faster_as_good(found) == keeps


@pytest.mark.parametrize(
    ("seed_sd", "verdict"),
    [
        (None, "seed spread unknown"),
        (0.2, "lower, seeds ± 0.2"),
        (4.0, "undecided, seeds ± 4.0"),  # −14 … −6 is −22 … +2
    ],
)
def test_one_seed_of_each_method_s_weights_gives_no_verdict(seed_sd, verdict):
    each = row(80, 70, -14, -6, quality_comparison="each trained for itself")
    assert stated_verdict(each, seed_sd) == verdict
    same = {**each, "quality_comparison": "same weights"}
    assert stated_verdict(same, seed_sd) == stated_verdict(row(80, 70, -14, -6)) == "lower"
    assert stated_verdict({**each, "value_diff_ci_lo": None}) is None


def test_lower_is_better_turns_it_round():
    assert quality_verdict(row(80, 70, -14, -6, higher_is_better=False)) == "higher"
    assert not keeps_quality(row(80, 82, -1, 5, higher_is_better=False))


def test_without_scores_there_is_no_verdict_and_no_emphasis():
    nothing = row(80, 80, None, None)
    assert quality_verdict(nothing) is None and keeps_quality(nothing)
    assert not faster_as_good({"lat_verdict": "faster"})
    assert not faster_as_good(row(80, 80, -0.5, 0.5, lat_verdict="undecided"))


def test_the_spread_over_seeds_is_of_the_difference_from_vanilla_of_the_same_seed():
    rows = [
        made.row(row_id=f"r{seed}", cell_key=f"k{seed}", seed=seed, value_diff=difference)
        for seed, difference in enumerate((1.0, 2.0, 3.0))
    ]
    rows.append(made.row(row_id="alone", cell_key="k9", seed=0, value_diff=9.0, length=1024))
    assert difference_sds(rows) == {"r0": 1.0, "r1": 1.0, "r2": 1.0}


@pytest.mark.parametrize(
    ("weights", "note"), [("file", "Q4_1, Q8_0"), ("f16", "dequantised from Q4_1, Q8_0")]
)
def test_an_engine_that_reads_the_file_computes_with_its_formats(weights, note):
    row = {"weights_format": "dequantised from Q4_1, Q8_0", "weights_kind": "pretrained"}
    row |= {"method_params": json.dumps({"cache": "f16", "weights": weights})}
    assert labelled("smollm2", row) == f"smollm2 ({note})"
