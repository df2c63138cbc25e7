"""Cells of a sweep that answer together: which do, what a plan reports, and kill and resume."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import bench
from bench.cli.main import dispatch
from bench.execution import cell_group, runner
from bench.request import plugins
from bench.rows.store import Predictions, Store
from bench.status import PlanState
from bench.sweep.estimate import Estimates, Work, together_s
from bench.sweep.plan import measured, plan
from bench.terminal import row_table
from tests.conftest import ROOT

CELL = ["model=embedded-llama", "task=longeval_lines", "length=256", "n=6", "threads=1"]
QUALITY = [*CELL, "measure=quality"]
METHODS = "method=vanilla,snapkv,tova"


def grouped(*words):
    """The titles of the cells of each group."""
    return [[planned.title for planned in group] for group in plan(words).groups]


def test_cells_that_differ_in_their_cache_answer_together():
    made = plan([*QUALITY, METHODS, "budget=0.25,0.5"])
    [group] = made.groups
    assert group == list(made.cells) and len(group) == 5
    assert made.seconds < 0.8 * sum(planned.alone_s for planned in group)
    assert group[0].seconds > group[1].seconds and group[0].bytes > group[1].bytes
    assert len(grouped(*CELL, METHODS, "measure=quick")[0]) == 3, "its quality, not its times"
    [continuations] = plan([*QUALITY, METHODS, "task=perplexity", "length=512"]).groups
    assert len(continuations) == 3
    (timed,) = plan([*CELL, METHODS, "measure=tokens"]).groups
    assert len(timed) == 3 and timed[0].seconds > timed[1].seconds


def test_an_estimate_counts_the_passes_in_which_a_method_reads_a_prompt_again():
    tova, kvzip = (bench.compose(*QUALITY, f"method={name}") for name in ("tova", "kvzip"))
    passes = plugins.facts("kvzip")["prompt_passes"] - 1
    again_s = kvzip.n * passes * Work(tova).forward_s
    assert again_s > 0
    assert together_s([tova, kvzip]) - together_s([tova, tova]) == pytest.approx(again_s)
    assert together_s([kvzip, kvzip]) == pytest.approx(together_s([tova, kvzip]))


@pytest.mark.parametrize(
    "words",
    [
        [METHODS, "share_prefill=false"],
        [METHODS, "batch=2"],
        [METHODS, "measure=speed"],
        ["method=vanilla,kvpress,vertical_slash"],
        ["method=snapkv", "seed=0,1"],
        ["method=vanilla,bigbird", "model=embedded", "task=narrativeqa"],
    ],
    ids=" ".join,
)
def test_others_answer_alone(words):
    assert grouped(*QUALITY, *words) == []


def test_a_time_leaves_out_a_group_or_none_of_it(tmp_path):
    words = [*QUALITY, "method=vanilla,snapkv", "length=256,512", f"results={tmp_path}"]
    assert [len(each) for each in plan([*words, "time=1h"]).groups] == [2, 2]
    states = [planned.state for planned in plan([*words, "time=1s"]).cells]
    assert states == 2 * [PlanState.TO_DO] + 2 * [PlanState.OVER_BUDGET]
    dispatch(["run", "-m", *words, "time=1s"])
    rows = Store(tmp_path).rows().to_pylist()
    assert {(row["length"], row["status"]) for row in rows} == {(256, "ok"), (512, "skipped")}
    assert len({row["status_detail"] for row in rows if row["length"] == 512}) == 1


def test_a_group_has_one_prefill_and_its_cells_follow_each_other():
    prefill = "method.prefill=vertical_slash"
    assert len(grouped(*QUALITY, "method=vanilla,snapkv,tova", prefill)[0]) == 2
    lengths = grouped(*QUALITY, "method=vanilla,snapkv", "length=256,512")
    assert lengths == [
        ["method=vanilla length=256", "method=snapkv length=256"],
        ["method=vanilla length=512", "method=snapkv length=512"],
    ]
    made = plan([*QUALITY, "method=vanilla,snapkv", "length=256,512"])
    assert [planned.group for planned in made.cells] == [0, 0, 1, 1]
    assert made.jobs == [[0, 1], [2, 3]]
    side_by_side = [*QUALITY, "method=snapkv,tova,h2o", "budget=0.1,0.2,0.3", "launcher=joblib"]
    assert plan([*side_by_side, "n_jobs=2"]).jobs == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


def stored(results):
    """Key of the predictions → their files, and the ids in them."""
    found = {}
    for folder in (results / "predictions").glob("*"):
        lines = [line for part in folder.glob("part-*") for line in part.read_text().splitlines()]
        found[folder.name] = [json.loads(line)["id"] for line in lines]
    return found


def test_a_killed_group_goes_on_at_the_next_sample(tmp_path, capsys):
    words = ["run", "-m", *QUALITY, "method=vanilla,snapkv", f"results={tmp_path}"]
    running = subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not any(stored(tmp_path).values()):
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = stored(tmp_path)
    assert Store(tmp_path).rows().num_rows == 0 and 0 < sum(map(len, before.values())) < 12
    assert dispatch(words) == 0
    rows = Store(tmp_path).rows().to_pylist()
    assert [(row["status"], row["batched_answers"]) for row in rows] == [("ok", 6)] * 2
    assert rows[1]["base_value"] == rows[0]["value"]
    for key, ids in stored(tmp_path).items():
        assert len(ids) == len(set(ids)) == 6, "each sample is answered once"
        assert set(before.get(key, ())) <= set(Predictions(tmp_path / "predictions", key).done())
    capsys.readouterr()
    row_table.show(rows[0], tmp_path)
    assert "6 answers decoded in a batch" in capsys.readouterr().out
    assert all(one.seconds is None for one in Estimates(measured(tmp_path)).rows)


def test_a_cell_by_itself_answers_together_with_vanilla(tmp_path):
    words = [*QUALITY, "n=2", "method=snapkv"]
    row = bench.run(bench.compose(*words), tmp_path)
    assert row["batched_answers"] == 2 and row["base_value"] is not None
    parts = row["quality_prefill_ns"], row["quality_decode_ns"], row["base_quality_ns"]
    assert min(parts) > 0 and sum(parts) < row["quality_ns"]
    assert sorted(map(len, stored(tmp_path).values())) == [2, 2]
    alone = runner.run(bench.compose(*words), tmp_path / "alone", share_prefill=False)
    assert alone["batched_answers"] is None and alone["value"] == row["value"]


def test_stored_answers_start_no_batches(tmp_path, monkeypatch):
    cell = bench.compose(*QUALITY, "n=2", "method=snapkv")
    first = bench.run(cell, tmp_path)
    monkeypatch.setattr(cell_group, "_answer", lambda *_: pytest.fail("answers again"))
    assert runner.run(cell, tmp_path, force=True)["value"] == first["value"]
