"""Published times and peaks beside measured ones: every verdict, from made rows."""

from __future__ import annotations

import json

import pytest

from bench.rows.comparison import Comparison
from reports.intervals import Measured
from reports.papers import build, measured, verdicts
from reports.papers.bench_commands import commands
from reports.papers.to_unfused import BUSY, PAGE_FAULTS
from tests.reports.papers.published_rows import TIME, one, ratio, real, scored, table, unfused


def test_ratios_are_formed_against_the_papers_vanilla(judged):
    """0.54 of fused at 2.0 of fused is 0.27 of unfused; printed 114.6 / 422.3 = 0.271."""
    cell = judged(ratio(0.54), unfused(), **TIME)
    assert cell.ratio == pytest.approx(0.2714, abs=1e-4)
    assert cell.measured.value == pytest.approx(0.27)
    assert cell.verdict == "reproduced" and cell.judgement.delta == pytest.approx(-0.5, abs=0.1)
    assert judged(ratio(0.8, row_id="new"), **TIME).verdict == "differs"


def test_a_ratio_to_fused_attention_is_not_the_papers(judged):
    cell = judged(ratio(0.27), **TIME)
    assert cell.verdict == "no row yet" and "method=vanilla_eager" in cell.reason
    assert cell.measured.value == pytest.approx(0.27)


@pytest.mark.parametrize(
    ("mine", "other"),
    [({}, {"host_id": "there"}), ({}, {"threads": 8}), ({}, {"model": "roberta-base"}),
     ({"filled": True}, {})],
)  # fmt: skip
def test_unfused_attention_of_another_cell_or_host_is_no_baseline(judged, mine, other):
    assert judged(ratio(0.54, **mine), unfused(**other), **TIME).verdict == "no row yet"


@pytest.mark.parametrize(
    ("tokens", "verdict"), [(None, "reproduced"), (4086, "reproduced"), (3144, "no row yet")]
)
def test_times_of_inputs_of_another_length_are_not_the_papers(judged, tokens, verdict):
    cell = judged(ratio(0.54, timed_tokens=tokens), unfused(timed_tokens=tokens), **TIME)
    assert cell.verdict == verdict
    assert ("inputs of 3,144 tokens were timed; the paper's have 4,096" in cell.reason) == (
        tokens == 3144
    )


@pytest.mark.parametrize(
    ("filled", "asked", "verdict"),
    [(True, "bigbird", "reproduced"), (None, "bigbird", "no row yet"), (True, "vcc", "no row yet")],
)
def test_filled_inputs_of_another_task_serve_where_the_query_costs_nothing(
    judged, filled, asked, verdict
):
    """Printed for QuALITY: BigBird 307.0 of 403.2 ms, VCC 139.7."""
    mine = ratio(1.52, method=asked, task="hotpotqa", method_params="{}", filled=filled)
    cell = judged(mine, unfused(task="wikihop", filled=filled), **TIME | {
        "method": asked, "task": "quality",
    })  # fmt: skip
    assert cell.verdict == verdict


FAILED = {"status": "oom_host", "status_detail": "can't allocate memory\nat 23 GiB"}


def test_unfused_attention_that_failed_leaves_no_ratio(judged):
    failed = unfused(**FAILED)
    cell = judged(ratio(0.54), failed, **TIME)
    assert cell.verdict == "undecided" and cell.measured is None
    assert cell.reason.endswith("the paper's vanilla, ended with oom_host")
    assert judged(ratio(0.54), failed, unfused(row_id="another"), **TIME).verdict == "reproduced"


def test_failed_unfused_attention_decides_nothing_of_another_setting(judged):
    setting = {"task": "lra_text", "model": "random-lra", "length": 4096, "batch": 5}
    rows = ratio(0.5, method="bigbird", **setting), unfused(**FAILED, **setting)
    rows[0].update(Comparison.of(rows[0], "lat").columns("train"))
    rows[0].update(train_n_pairs=40, measure="training")
    wanted = {"method": "bigbird", "metric": "speed_ratio", "length": 4096}
    cell = judged(*rows, name="lra_speed", **wanted)
    assert cell.verdict == "no row yet" and "the nearest row" in cell.reason


def test_too_few_pairs_are_told(judged):
    few = {"lat_ratio_ci_lo": 0.0, "lat_ratio_ci_hi": float("inf"), "lat_n_pairs": 4}
    cell = judged(ratio(0.54) | few, unfused(), **TIME)
    assert cell.verdict == "undecided" and "too wide to tell (4 pairs)" in cell.reason


def test_what_is_read_once_has_no_pairs():
    wide = verdicts.judge_ratio(0.5, 0.0, Measured(0.5, 0.3, 0.8))
    assert wide.verdict == "undecided" and "too wide to tell: ×1.25" in wide.reason


@pytest.mark.parametrize(
    ("mine", "base", "doubt"),
    [({"noisy": True}, {}, BUSY), ({}, {"noisy": True}, BUSY),
     ({}, {"large_memory_kept": False}, PAGE_FAULTS)],
)  # fmt: skip
def test_a_noisy_host_and_page_faults_in_a_time_reproduce_nothing(judged, mine, base, doubt):
    """Page faults are malloc's, where large blocks could not be kept: a GPU's allocator keeps its
    own."""
    cell = judged(ratio(0.54, **mine), unfused(**base), **TIME)
    assert cell.verdict == "undecided" and cell.measured.value == pytest.approx(0.27)
    assert cell.doubts == (doubt,) and cell.reason == doubt


def test_speed_counts_with_random_weights_and_embedded_rows(judged):
    loose = {"weights_kind": "random", "data_source": "embedded", "model": "random-roberta-base"}
    assert judged(ratio(0.54, **loose), unfused(**loose), **TIME).verdict == "reproduced"


def test_a_length_without_a_printed_vanilla_has_no_printed_ratio():
    wanted = {"model_size": "base", "length": 16384, "task": "qasper"}
    cell = one(table("vcc_table2"), method="vcc", metric="runtime_encoder_ms", **wanted)
    assert cell.judgement == verdicts.Judgement("cannot", build.NO_VANILLA)


def test_a_row_that_ended_badly_says_how(judged):
    cell = judged(real(status="oom_host", status_detail="killed\nat 9 GiB"), **TIME)
    assert cell.judgement == verdicts.Judgement("undecided", "oom_host: killed")
    cell = judged(real(status="unsupported", status_detail="no relative bias", length=4096))
    assert cell.reason == "unsupported: no relative bias"


def test_a_speed_row_that_was_passed_over_tells_nothing_of_a_score(judged):
    left_out = real(status="skipped", status_detail="over budget", measure="glance", length=4096)
    assert judged(left_out, **TIME).judgement == verdicts.Judgement("skipped", "over budget")
    assert judged(left_out).verdict == "cannot"
    whole = left_out | {"measure": "quick", "row_id": "another"}
    assert judged(whole).verdict == "skipped"


def test_an_ok_row_goes_before_a_failed_one(judged):
    assert judged(scored(74.6), real(status="error", status_detail="x")).verdict == "reproduced"


def test_memory_of_the_whole_process_is_compared_as_a_ratio(judged):
    lra = {"task": "lra_text", "model": "random-lra", "length": 4000, "device": "cpu"}
    bytes_ = {"rss_base_bytes": 1 << 30, "rss_peak_delta_bytes": 1 << 30}
    small = {"rss_base_bytes": 1 << 30, "rss_peak_delta_bytes": 1 << 28}
    cell = judged(
        real(**lra, **small, method="iceformer"),
        real(**lra, **bytes_, method="vanilla_eager"),
        name="iceformer_table2", method="iceformer", task="text",
    )  # fmt: skip
    assert cell.measured.value == pytest.approx(0.625)
    assert cell.printed.approximate and cell.ratio is not None


def test_rates_and_speeds_are_turned_into_method_over_vanilla():
    wanted = {"method": "performer", "length": 4096}
    speed = one(table("lra_speed"), metric="speed_ratio", **wanted)
    steps = one(table("lra_speed"), metric="steps_per_second", **wanted)
    assert speed.ratio == pytest.approx(1 / 5.7) and steps.ratio == pytest.approx(1.4 / 8.0)


def test_training_is_compared_against_unfused_training():
    row = dict.fromkeys(measured.WANTED) | {
        "train_ratio": 0.4, "train_ratio_ci_lo": 0.39, "train_ratio_ci_hi": 0.41,
        "train_ratio_p": 1e-4, "train_n_pairs": 40,
    }  # fmt: skip
    eager = row | {"train_ratio": 2.0, "train_ratio_ci_lo": 1.9, "train_ratio_ci_hi": 2.1}
    found = measured.PAIRED["training"](row, eager)
    assert found.measured.value == pytest.approx(0.2) and not found.objections
    peaks = {"train_peak_bytes": 300}, {"train_peak_bytes": 1000}
    found = measured.PAIRED["training_memory"](row | peaks[0], row | peaks[1])
    assert found.measured.value == pytest.approx(0.3)


def attended(share, ratio_to_fused, **more):
    """A row of LRA whose attention takes a share of each of some walks through the layers."""
    walks = [1000, 1010, 990, 1005]
    found = ratio(ratio_to_fused, task="lra_text", model="random-lra", length=4000, **more)
    return found | {
        "encode_samples_ns": walks, "attend_samples_ns": [round(share * walk) for walk in walks],
    }  # fmt: skip


def test_time_in_attention_is_its_share_of_the_paired_latencies(judged):
    """A fifth of half of vanilla's time, against four fifths of twice vanilla's."""
    cell = judged(
        attended(0.2, 0.5, method="iceformer", method_params='{"search": "dci"}'),
        attended(0.8, 2.0, method="vanilla_eager", method_params="{}"),
        name="iceformer_table1", method="iceformer", task="text",
    )  # fmt: skip
    assert cell.measured.value == pytest.approx(0.2 * 0.5 / (0.8 * 2.0), rel=1e-2)
    assert 0.95 < cell.measured.lo / cell.measured.value < 1 < cell.measured.hi / 0.0625 < 1.05
    assert cell.verdict == "differs"


def test_one_reading_of_the_attention_has_no_interval(judged):
    once = {"encode_samples_ns": [1000], "attend_samples_ns": [200]}
    cell = judged(
        attended(0.2, 0.5, method="iceformer", method_params='{"search": "dci"}') | once,
        attended(0.8, 2.0, method="vanilla_eager", method_params="{}"),
        name="iceformer_table1", method="iceformer", task="text",
    )  # fmt: skip
    assert cell.measured.lo is None and cell.verdict == "undecided"


def test_a_whole_answer_is_the_first_token_and_its_further_ones(judged):
    """HotpotQA's longest answer has 40 tokens: 39 of 1 ms after 50 ms, or after 200 ms unfused."""
    t5 = {"model": "random-t5-base", "length": 4096, "lat_base_median_ns": 100_000_000}
    t5 |= {"decode_ns_per_token": 1_000_000}
    wanted = {"method": "vcc", "model_size": "base", "task": "hotpotqa", "length": 4096}
    cell = judged(
        ratio(0.5, **t5), unfused(**t5), name="vcc_table2", metric="runtime_total_ms", **wanted
    )
    assert cell.measured.value == pytest.approx(89 / 239)
    assert cell.measured.lo < cell.measured.value < cell.measured.hi
    assert cell.verdict == "differs"


@pytest.mark.parametrize(("search", "compared"), [("dci", True), ("quantized", False)])
def test_iceformers_figures_are_compared_with_its_own_search_alone(search, compared, judged):
    lra = {"task": "lra_text", "model": "random-lra", "length": 4000, "device": "cpu"}
    bytes_ = {"rss_base_bytes": 1 << 30, "rss_peak_delta_bytes": 1 << 30}
    cell = judged(
        real(**lra, **bytes_, method="iceformer", method_params=json.dumps({"search": search})),
        real(**lra, **bytes_, method="vanilla_eager"),
        name="iceformer_table2", method="iceformer", task="text",
    )  # fmt: skip
    assert (cell.verdict in ("reproduced", "differs", "undecided")) == compared
    why = "search=quantized (it scores all n² pairs in 8 bits); the paper's is dci"
    assert (why in cell.objections) == (not compared)


def test_what_the_paper_printed_and_nobody_has_is_measured_all_the_same(judged):
    row = real(task="lra_text", model="random-lra", method="iceformer", fid_rel_l2=0.25)
    cell = judged(row, name="iceformer_table7", task="text")
    assert cell.measured.value == 0.25 and "isn't known" in cell.reason


def test_a_size_that_only_the_method_tells_counts(judged):
    row = real(task="cnn_dailymail", model="facebook-bart-large", split="test", method="vanilla")
    row |= {"metric": "rouge_stemmed", "value": 40.9, "ci_lo": 40.5, "ci_hi": 41.3}
    wanted = {"method": "bart", "task": "cnn_dailymail", "metric": "rougeL"}  # printed 40.90
    cell = judged(row, name="bigbird_summarization", **wanted)
    assert cell.verdict == "reproduced", cell


@pytest.mark.parametrize(
    ("least", "greatest", "verdict"),
    [(0.33, 0.35, "reproduced"), (0.6, 2.0, "differs"), (0.02, 0.04, "differs"),
     (0.34, 2.0, "undecided"), (0.02, 2.0, "undecided"), (0.34, None, "no row yet")],
)  # fmt: skip
def test_a_setting_that_is_not_known_is_measured_at_the_ends_of_what_was_searched(
    judged, least, greatest, verdict
):
    """Printed 0.342 of unfused, with 64 to 1,024 landmarks."""
    rows = [
        attended(0.5, value, method="lara", method_params=f'{{"c": {c}}}', row_id=str(c),
                 cell_key=str(c))
        for c, value in ((64, least), (1024, greatest)) if value
    ]  # fmt: skip
    base = attended(0.5, 1.0, method="vanilla_eager", method_params="{}")
    cell = judged(*rows, base, name="iceformer_table1", method="lara", task="text")
    assert cell.verdict == verdict
    if greatest:
        assert f"at the ends: c=64 ×{least}, c=1024 ×{greatest:g}" in cell.reason
        assert {row["row_id"] for row in (cell.row, *cell.other_rows)} == {"64", "1024"}
        assert cell.measured.lo < least and cell.measured.hi > greatest


def test_each_end_of_a_setting_has_its_command():
    every = " ".join(command for _, command in commands(table("iceformer_table1")))
    assert {word for word in every.split() if word.startswith("method.c=")} == {
        "method.c=64", "method.c=1024"
    }  # fmt: skip
