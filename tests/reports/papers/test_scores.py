"""Published scores beside measured ones: every verdict, from made rows."""

from __future__ import annotations

import json

import pytest

from bench.rows.store import Store
from reports.papers import command, verdicts
from tests.reports.papers.published_rows import EM, F1, one, ratio, scored, table


def test_a_score_within_the_tolerance_is_reproduced(judged):
    cell = judged(scored(75.1))
    assert cell.verdict == "reproduced" and cell.judgement.delta == pytest.approx(0.5)
    assert cell.measured.lo == 74.6


def test_a_score_beyond_it_differs(judged):
    cell = judged(scored(70.0))
    assert cell.judgement == verdicts.Judgement("differs", "", pytest.approx(-4.6))


@pytest.mark.parametrize(("score", "half"), [(74.6, 12.0), (60.0, 15.0)])
def test_few_rows_reproduce_nothing_however_near_and_differ_from_nothing(judged, score, half):
    cell = judged(scored(score, half=half, n_scored=32))
    assert cell.verdict == "undecided" and "too wide to tell (n=32)" in cell.reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"data_source": "embedded"}, "embedded rows"),
        ({"weights_kind": "embedded"}, "embedded weights"),
        ({"weights_kind": "pretrained-swap"}, "pretrained-swap weights"),
        ({"model": "embedded"}, "model embedded; the paper's is base"),
        ({"split": "test"}, "test split; the paper's is dev"),
        ({"method_params": json.dumps({"k": 8, "h": 70})}, "k=8; the paper's is 16"),
        ({"method_params": json.dumps({"k": 16, "h": 90})}, "h=90; the paper's is 70"),
        ({"method_params": json.dumps({"selection": "paper"})}, "the paper's is attention"),
        ({"method_params": json.dumps({"plain_layers": 3})}, "plain_layers=3; the paper's is 4"),
    ],
)
def test_what_is_not_the_papers_cell_is_shown_and_never_compared(judged, more, reason):
    cell = judged(scored(74.6, **more))
    assert cell.verdict == "cannot" and reason in cell.reason
    assert cell.measured.value == 74.6 and cell.judgement.delta is None


def test_settings_with_a_name_of_their_own_count_by_their_parameters(judged):
    linformer = {"method": "linformer", "task": "text", "model_size": "lra-base"}
    row = {
        "task": "lra_text", "split": "test", "data_source": "local", "weights_kind": "from-scratch",
        "model": "my-lra-base", "length": 4000, "metric": "accuracy", "n_scored": 25000,
    }  # fmt: skip
    params = {"k": 16, "n": 4096, "sharing": "key-value"}
    given = {"method": "linformer_lra", "method_params": json.dumps(params | {"k": 256})}
    cell = judged(scored(54.0, **row, **given), name="fourier_table1", **linformer)
    assert cell.reason == "the nearest row: k=256; the paper's is 16"
    given["method_params"] = json.dumps(params)
    cell = judged(scored(54.0, **row, **given), name="fourier_table1", **linformer)
    assert cell.verdict == "reproduced" and cell.row["method"] == "linformer_lra"


def test_settings_that_nobody_knows_are_shown_and_never_compared(judged):
    row = scored(77.0, method="mra_4k", method_params="{}")
    cell = judged(row, **{**F1, "method": "mra"})
    assert cell.verdict in ("cannot", "no row yet") and cell.measured.value == 77.0
    assert cell.reason == (
        "the paper prints no number of exact blocks; 16 a row is that of MRA's authors at 4,096 "
        "tokens"
    )


@pytest.mark.parametrize(
    ("layers", "reason"), [(8, "plain_layers=8; the paper's is 6"), (6, ""), (None, "")]
)
def test_a_large_model_has_the_plain_layers_of_the_papers(judged, layers, reason):
    row = scored(80.0, model="my-t5-large", method_params=json.dumps({"plain_layers": layers}))
    cell = judged(row, name="vcc_table2", **{**F1, "model_size": "large"})
    assert cell.row and (reason in cell.reason if reason else "plain_layers" not in cell.reason)


@pytest.mark.parametrize("other", [{"length": 2048}, {"model": "my-roberta-large"}])
def test_another_length_or_printed_size_is_another_line(judged, other):
    assert judged(scored(74.6, **other)).verdict in ("no row yet", "cannot")


def test_a_row_that_may_be_compared_goes_before_a_newer_that_may_not(judged):
    cell = judged(scored(74.6), scored(10.0, data_source="embedded"))
    assert cell.verdict == "reproduced"


def test_a_figure_without_a_stored_interval_gets_the_widest_possible(judged):
    cell = judged(scored(74.9), **EM)
    assert cell.measured.value == pytest.approx(60.9)
    assert cell.measured.hi - cell.measured.lo == pytest.approx(2.22, abs=0.02)
    assert cell.verdict == "reproduced"


def test_a_metric_that_the_task_lacks_is_told(judged):
    row = scored(30.0, task="wikihop", metric="exact_match", metrics='{"exact_match": 30.0}')
    row |= {"model": "t5-base-wikihop", "method": "vanilla", "method_params": "{}"}
    cell = judged(
        row, name="vcc_table2", method="t5", model_size="base", length=4096, task="wikihop",
        metric="f1",
    )  # fmt: skip
    assert "exact_match, has no f1" in cell.reason


def test_weights_that_only_longer_pretraining_tells_apart_are_not_compared(judged):
    cell = judged(scored(75.0), **{**F1, "method": "vcc_star"})
    assert cell.verdict == "cannot" and "longer pretraining" in cell.reason


def test_a_mean_over_tasks_is_formed_of_all_or_not_at_all(tmp_path):
    for number, task in enumerate(("listops", "text", "retrieval", "image")):
        row = scored(60.0, task=f"lra_{task}", metric="accuracy", model="lra-full", split="test")
        row |= {"method": "vanilla", "method_params": "{}", "length": 8192}
        Store(tmp_path).append([row | {"weights_kind": "from-scratch", "seed": number}])
    wanted = {"method": "vanilla", "task": "lra_avg"}
    some = one(table("fourier_table1", tmp_path), **wanted).judgement
    assert some == verdicts.Judgement("no row yet", "4 of 5 tasks are measured")
    row |= {"task": "lra_pathfinder", "weights_kind": "from-scratch", "row_id": None}
    Store(tmp_path).append([row | {"cell_key": "pathfinder"}])
    cell = one(table("fourier_table1", tmp_path), **wanted)  # printed 54.39
    assert cell.measured.value == pytest.approx(60.0) and cell.verdict == "differs"
    assert cell.measured.hi == pytest.approx(60 + 0.5 / 5**0.5)


@pytest.mark.parametrize(
    "more",
    [
        {"method_params": "[1]", "metrics": '"x"'},
        {"length": None, "split": None, "model": None, "batch": None, "threads": None},
        {"value": float("nan"), "ci_lo": None, "ci_hi": None, "n_scored": None, "metric": None},
        {"host_id": None, "created_utc": "long ago", "weights_kind": None, "data_source": None},
    ],
)
def test_a_row_that_lacks_what_others_have_stops_nothing(tmp_path, more):
    Store(tmp_path).append([scored(75.0) | more, ratio(0.5, task="quality") | more])
    found = table("vcc_table1", tmp_path)
    assert "reproduced" not in {c.verdict for c in found.cells if "length" in more}
    for write in command.FORMATS.values():
        assert write(found)


def test_a_system_of_its_own_is_read_from_rows_of_its_models(judged):
    f1 = {"method": "longt5", "model_size": "base", "length": 4096, "task": "hotpotqa"}
    row = {"method": "vanilla", "method_params": "{}", "dtype": "bfloat16", "length": 4096}
    rows = [scored(5.0, **row, model="t5-base"), scored(73.3, **row, model="my-long-t5-local-base")]
    cell = judged(*rows, name="vcc_table2", **f1, metric="f1")
    assert cell.measured.value == 73.3 and not cell.objections
    encoder = judged(name="vcc_table2", **f1, metric="runtime_encoder_ms")
    assert encoder.measured is None and "a model of its own" in encoder.judgement.reason
