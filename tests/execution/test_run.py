"""A request becomes a row: the whole path, on a tiny model, through the real children."""

import json

import pytest

import bench
from bench.cli import main
from bench.execution import runner
from bench.host import host
from bench.rows.store import Store

WORDS = ["length=512", "n=2", "threads=1"]


@pytest.fixture(scope="module")
def finished(tiny_t5, tmp_path_factory):
    results = tmp_path_factory.mktemp("rows")
    row = bench.run(bench.compose(f"model={tiny_t5}", *WORDS), results)
    return results, row


@pytest.fixture
def bench_run(tiny_t5, capsys):
    """A function that runs `bench run` in this process: exit code, output, error output."""

    def run(results, *words, model=tiny_t5):
        with pytest.raises(SystemExit) as ended:
            main.main(["run", f"model={model}", f"results={results}", *WORDS, *words])
        return ended.value.code, *capsys.readouterr()

    return run


def test_one_row_holds_quality_latency_memory_and_fidelity(finished):
    _, row = finished
    assert row["status"] == "ok" and not row["reused"], row.get("status_detail")
    names = [row[name] for name in ("method", "task", "data_source")]
    assert names == ["vcc", "narrativeqa", "embedded"]
    assert row["metric"] == "f1" and 0 <= row["value"] <= 100 and row["n_scored"] == 2
    assert row["base_value"] is not None and row["value_diff_ci_lo"] <= row["value_diff"]
    assert row["lat_ratio_ci_lo"] <= row["lat_ratio"] <= row["lat_ratio_ci_hi"]
    assert row["lat_verdict"] in ("faster", "slower", "same", "undecided")
    assert len(row["lat_samples_ns"]) == len(row["lat_base_samples_ns"]) == row["lat_n_pairs"]
    assert row["lat_pair_order"].count("A") == len(row["lat_aa_first_samples_ns"])
    assert {"M", "V"} <= set(row["lat_pair_order"])
    assert set(row["lat_pair_process"]) == {0, 1, 2, 3} and row["lat_n_processes"] == 4
    assert row["lat_process_sd_pct"] >= 0 and row["lat_process_reason"] is None
    assert row["mem_method"] == "VmHWM" and row["rss_peak_delta_bytes"] > 0
    assert row["base_rss_peak_delta_bytes"] > 0 and row["mem_ratio"] > 0
    assert row["fid_rel_l2"] >= 0 and 0 <= row["fid_top1_agree"] <= 1
    assert 450 < row["tokens_seen_mean"] <= 512 and row["truncated_frac"] == 0
    assert 0 < row["attend_ns"] < row["encode_ns"] and row["lat_solo_median_ns"] > 0
    assert row["lat_aa_verdict"] in ("faster", "slower", "same", "undecided")
    assert row["kernel"] and row["gemm_gflops"] > 0 and row["blas"]
    own = row["engine_base_samples_ns"]
    if row["engine_kernel"] == "torch":
        assert own is None and row["engine_ratio"] == row["lat_ratio"]
    else:
        assert len(own) == len(row["engine_samples_ns"]) == row["lat_n_pairs"] // 2
        assert row["engine_ratio_ci_lo"] <= row["engine_ratio"]
        assert set(row["engine_pair_process"]) == {0, 1, 2, 3}
    assert row["engine_verdict"] in ("faster", "slower", "same", "undecided")
    assert row["energy_j"] is not None or row["energy_reason"]
    assert len(row["lat_base_outside_samples_ns"]) == len(row["lat_outside_samples_ns"]) > 0
    assert row["lat_base_outside_ns"] > 0 and row.get("lat_outside_reason") is None
    assert row["lat_timed_rel_l2"] == pytest.approx(row["lat_outside_rel_l2"], rel=0.9)
    assert row["attempt"] == 1


def test_the_row_is_in_the_store_and_is_not_run_again(finished, tiny_t5, bench_run):
    results, row = finished
    again = bench.run(bench.compose(f"model={tiny_t5}", *WORDS), results)
    assert again["reused"] and again["row_id"] == row["row_id"]
    code, output, _ = bench_run(results)
    assert code == 0 and "FORCE=1" in output and row["row_id"][:12] in output


def test_a_forced_run_adds_a_row_and_keeps_the_predictions(finished, tiny_t5):
    results, _ = finished
    cell = bench.compose(f"model={tiny_t5}", *WORDS, "measure=quality")
    row = bench.run(cell, results)
    again = bench.run(cell, results, force=True)
    assert again["row_id"] != row["row_id"] and row["attempt"] == 1
    assert again["predictions_sha256"] == row["predictions_sha256"]
    assert again["value"] == row["value"] and again["attempt"] == 2
    assert Store(results).rows().num_rows >= 2


def test_the_command_line_gives_the_same_cell_as_python(finished, bench_run, tmp_path):
    _, row = finished
    code, output, error = bench_run(tmp_path, "measure=quality")
    assert code == 0, error
    [stored] = Store(tmp_path).rows().to_pylist()
    assert stored["predictions_sha256"] == row["predictions_sha256"]
    assert json.loads(stored["cell"]) | {"measure": "quick"} == json.loads(row["cell"])
    assert "f1 (n=2)" in output


def test_a_batch_of_mixed_lengths_runs_by_every_method_and_kernel(bench_run, tmp_path):
    """The short row's padding is out of the reach of T5's position bias."""
    articles = [{"id": str(n), "article": "once " * n, "highlights": "once"} for n in (20, 400)]
    file = tmp_path / "cnn_dailymail" / "validation.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(map(json.dumps, articles)))
    code, said, errors = bench_run(
        tmp_path / "rows", "-m", "method=bigbird,fourier,iceformer,vanilla,vcc",
        "method.kernel=native,torch", "task=cnn_dailymail", "task.max_new_tokens=2", "data=local",
        f"data.dir={tmp_path}", "batch=2", "measure=quality",
    )  # fmt: skip
    assert code == 0 and "10 cells: 10 done, 0 failed" in said, said + errors


def test_predictions_are_resumed_where_they_stopped(tiny_t5, tmp_path):
    few = bench.compose(f"model={tiny_t5}", "length=256", "n=2", "threads=1", "measure=quality")
    bench.run(few, tmp_path)
    shards = sorted((tmp_path / "predictions" / few.prediction_key).iterdir())
    before = {path: path.read_bytes() for path in shards}
    more = bench.compose(f"model={tiny_t5}", "length=256", "n=4", "threads=1", "measure=quality")
    notes = set()
    row = bench.run(more, tmp_path, progress=lambda *report: notes.add(report[-1]))
    assert row["n_scored"] == 4 and "(2 stored before)" in notes
    assert all(path.read_bytes() == content for path, content in before.items())


def test_another_architecture_is_a_wrong_request(tiny_t5, bench_run, tmp_path):
    for file in tiny_t5.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    code, _, error = bench_run(tmp_path / "rows", model=tmp_path)
    assert code == 2 and "holds a model of type 'mamba'" in error


def test_times_taken_beside_other_work_are_noisy(tiny_t5, tmp_path, monkeypatch):
    monkeypatch.setattr(runner.stages, "planned", lambda cell: ())
    cell = bench.compose(f"model={tiny_t5}", *WORDS)
    row = runner.run(cell, tmp_path, origin=host.Origin(workers="n_jobs=2"))
    assert row["ran_beside"] == "n_jobs=2"
    assert row["noisy"] and "next to n_jobs=2" in row["noise_reason"]
