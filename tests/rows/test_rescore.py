"""bench rescore: a repaired metric needs no new run, and never a wrong number."""

import json
import shutil
from dataclasses import replace

import pytest

from bench.errors import RequestError
from bench.rows.rescore import rescored, scores
from bench.rows.store import Store
from tasks import metrics
from tests import made
from tests.rows.test_results import bench

SAME = ("row_id", "created_utc", "metric_version")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def model(tmp_path):
    return made.checkpoint(tmp_path / "model")


@pytest.fixture
def halved(monkeypatch):
    """F1 as a later version that gives half of the score."""
    now = metrics.METRICS["f1"]
    later = replace(now, version=now.version + 1, value=lambda figures: now.value(figures) / 2)
    monkeypatch.setitem(metrics.METRICS, "f1", later)
    return later


def stored(results):
    return Store(results).rows().to_pylist()


def test_a_new_metric_adds_a_row_that_differs_in_quality_only(results, model, halved, capsys):
    more = {"row_id": "old", "metric_version": "0", "value": 50.0}
    made.answered(results, model, [True, False], [True, True], **more)
    [old] = stored(results)
    code, out, _ = bench(capsys, "rescore", "--results", results)
    assert code == 0 and "1 row added" in out[-1]
    assert "f1 50.00 → 25.00, metric version 0 → " in out[0]
    new = stored(results)[-1]
    assert new["value"] == 25.0 and new["base_value"] == 50.0 and new["value_diff"] == -25.0
    assert new["metric_version"] == str(halved.version)
    assert json.loads(new["metrics"])["value"] == 25.0
    assert new["row_id"] != "old" and new["cell_key"] == old["cell_key"]
    quality = {"value", "stderr", "ci_lo", "ci_hi", "metrics", "base_value", "base_ci_lo",
               "base_ci_hi", "value_diff", "value_diff_ci_lo", "value_diff_ci_hi"}  # fmt: skip
    assert {n for n in new if new[n] != old[n]} <= {*quality, *SAME}
    code, out, _ = bench(capsys, "rescore", "--results", results)
    assert out == ["0 rows added, 1 already of today's metric, 0 failed"]


def test_all_scores_rows_of_the_same_version_and_words_choose(results, model, capsys):
    made.answered(results, model, [True, False], None)
    made.answered(results, model, [True, True], None, "task=qasper")
    code, out, _ = bench(capsys, "rescore", "task=qasper", "--all", "--results", results)
    assert code == 0 and out[-1] == "1 row added, 0 already of today's metric, 0 failed"
    assert [row["task"] for row in stored(results)] == ["narrativeqa", "qasper", "qasper"]


def test_vanillas_predictions_are_found_after_the_code_has_changed(results, model, halved):
    made.answered(results, model, [True, False], [True, True])
    row = stored(results)[0]
    folder = results / "predictions"
    for path in list(folder.iterdir()):
        if path.name not in row["predictions_path"]:
            path.rename(folder / "a-key-of-older-code")
    assert rescored(row, results)["base_value"] == 50.0


def test_missing_predictions_are_one_line_and_exit_code_1(results, model, halved, capsys):
    made.answered(results, model, [True, False], None, metric_version="0")
    made.answered(results, model, [True, True], None, "seed=1", metric_version="0")
    gone = stored(results)[0]
    shutil.rmtree(results / gone["predictions_path"])
    code, out, err = bench(capsys, "rescore", "--results", results)
    assert code == 1 and len(err) == 1
    assert gone["row_id"][:12] in err[0] and "its predictions are missing" in err[0]
    assert out[-1] == "1 row added, 0 already of today's metric, 1 failed"


def test_other_predictions_than_the_rows_are_never_scored(results, model):
    row = made.answered(results, model, [True, False], [False, False])
    stored_row = stored(results)[0]
    with pytest.raises(RequestError, match="vanilla's predictions are missing"):
        rescored(stored_row | {"base_predictions_sha256": "0" * 64}, results)
    with pytest.raises(RequestError, match="are no longer those of the row"):
        rescored(stored_row | {"predictions_sha256": "0" * 64}, results)
    cell = json.loads(row["cell"])
    cell["data"]["sha256"] = "0" * 64
    with pytest.raises(RequestError, match="rows of the task are not those it was run on"):
        rescored(stored_row | {"cell": json.dumps(cell)}, results)
    with pytest.raises(RequestError, match="doesn't hold its cell"):
        rescored(stored_row | {"cell": None}, results)


def test_a_cell_whose_task_has_changed_its_parameters_says_so(results, model):
    made.answered(results, model, [True, False], None)
    row = stored(results)[0]
    cell = json.loads(row["cell"])
    cell["task"]["colour"] = "red"
    with pytest.raises(RequestError, match="unknown parameter of narrativeqa 'colour'"):
        scores(row | {"cell": json.dumps(cell)}, results)


def test_scores_belong_to_whole_samples(results, model):
    made.answered(results, model, [True, False, True], None)
    found = scores(stored(results)[0], results)
    assert list(found.values()) == [100.0, 0.0, 100.0]
    assert all(sample.document for sample in found)
