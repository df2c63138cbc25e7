"""bench export rows --to every_eval_ever and hf-eval-results: scores for other collections."""

import json
import math
import uuid

import pytest
import yaml

from bench.rows.store import Store
from tests import made
from tests.rows.test_results import bench

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = {"path": f"/cache/hub/models--google-t5--t5-base/snapshots/{COMMIT}"}
TASK = {"hub": {"repo": "tau/scrolls", "revision": "main"}, "max_new_tokens": 47}
SCORED = {"metric": "f1", "value": 61.5, "ci_lo": 58.0, "ci_hi": 65.0, "ci_method": "bootstrap",
          "higher_is_better": True, "n_scored": 40, "n_samples_official": 40}  # fmt: skip


def of_hub(**more):
    cell = {"model": MODEL, "task": TASK}
    columns = {"cell": cell, "data_source": "hub", "weights_kind": "pretrained-swap",
               "model": "t5-base", **SCORED}  # fmt: skip
    return made.row(**columns | more)


@pytest.fixture
def export(tmp_path, capsys):
    def run(to, *rows):
        store = Store(tmp_path / "runs")
        store.append(list(rows))
        words = ("--to", to, "--into", tmp_path / "out", f"results={store.folder}")
        return *bench(capsys, "export", "rows", *words), tmp_path / "out"

    return run


def records(folder):
    return {path: json.loads(path.read_text()) for path in folder.rglob("*.json")}


def test_a_record_has_the_score_the_time_and_the_memory_with_their_intervals(export):
    code, out, _, into = export("every_eval_ever", of_hub(**made.timing(0.6), mem_ratio=0.5))
    [(path, record)] = records(into).items()
    assert code == 0 and out == [f"{into}: 1 record of 1 row"]
    assert path.parent == into / "data/longctx-bench/google-t5/t5-base"
    assert uuid.UUID(path.stem).version == 4
    assert record["model_info"]["id"] == "google-t5/t5-base"
    score, latency, memory = record["evaluation_results"]
    assert score["evaluation_name"] == "scrolls/narrativeqa"
    assert score["source_data"]["hf_repo"] == "tau/scrolls"
    assert score["score_details"] == {
        "score": 61.5,
        "uncertainty": {
            "confidence_interval": {
                "lower": 58.0, "upper": 65.0, "confidence_level": 0.95, "method": "bootstrap"
            },
            "num_samples": 40,
        },
    }  # fmt: skip
    assert latency["metric_config"]["metric_id"] == "longctx-bench.latency_ratio"
    assert latency["metric_config"]["lower_is_better"] and memory["score_details"]["score"] == 0.5
    details = score["generation_config"]["additional_details"]
    assert details["method"] == "vcc" and all(isinstance(each, str) for each in details.values())


def test_shipped_rows_are_not_called_the_benchmarks_and_paths_stay_here(export):
    cell = {"model": {"path": "/data/secret/model"}, "task": TASK}
    row = made.row(cell=cell, model="a/b ü", weights_kind="finetuned", **SCORED)
    _, _, _, into = export("every_eval_ever", row)
    [(path, record)] = records(into).items()
    [score] = record["evaluation_results"]
    assert score["evaluation_name"] == "longctx-bench/narrativeqa"
    assert score["source_data"]["source_type"] == "other"
    assert record["model_info"]["id"] == "local/a-b" and "secret" not in path.read_text()


def test_a_second_export_writes_the_same_file_and_no_infinity(export):
    row = of_hub(lat_ratio=0.5, lat_ratio_ci_lo=0.1, lat_ratio_ci_hi=math.inf)
    for _ in range(2):
        *_, into = export("every_eval_ever", row)
    [record] = records(into).values()
    _, latency = record["evaluation_results"]
    assert latency["score_details"] == {"score": 0.5}


def test_records_keep_to_the_published_schema(export):
    validation = pytest.importorskip("every_eval_ever.validator.validation_core")
    rows = of_hub(**made.timing(0.6)), made.row(value=-3.0, metric="f1"), made.row(mem_ratio=1.0)
    *_, into = export("every_eval_ever", *rows)
    for path in records(into):
        report = validation.validate_aggregate(
            path, repo_path=str(path.relative_to(into)), run_semantic_checks=True
        )
        assert report.valid and not report.errors


def test_nothing_to_export_is_one_line(export):
    code, _, err, into = export("every_eval_ever", made.row(status="oom_host"))
    assert code == 2 and len(err) == 1 and "none of 1 row" in err[0] and not into.exists()


def test_whole_splits_of_the_hub_become_eval_results_that_the_hub_reads(export):
    hub = pytest.importorskip("huggingface_hub")
    part = of_hub(n_scored=4)
    code, out, _, into = export("hf-eval-results", of_hub(method="vanilla"), of_hub(), part)
    assert code == 0 and "2 scores in 1 file; left out: 1 of a part of the samples" in out[0]
    [path] = into.rglob("*.yaml")
    assert path == into / "google-t5--t5-base/.eval_results/narrativeqa.yaml"
    text = yaml.safe_load(path.read_text())
    entries = hub.parse_eval_result_entries(text)
    assert hub.eval_result_entries_to_yaml(entries) == text
    assert [(each.dataset_id, each.task_id, each.value) for each in entries] == [
        ("tau/scrolls", "narrativeqa", 61.5)
    ] * 2
    assert "method vanilla" in entries[0].notes and COMMIT in entries[0].notes


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (made.row(**SCORED), "1 of embedded data"),
        (of_hub(value=None), "1 without a score"),
        (of_hub(cell={"model": {"path": "/a/model"}, "task": TASK}), "not the hub's"),
        (of_hub(n_scored=39), "1 of a part of the samples"),
    ],
)
def test_what_has_no_place_in_a_models_repository_is_said(row, reason, export):
    code, _, err, into = export("hf-eval-results", row)
    assert code == 2 and len(err) == 1 and reason in err[0] and not into.exists()
