"""A sweep while it runs and after it: rows, records, output, and failures."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import dispatch
from bench.errors import RequestError
from bench.execution import cell_run, runner
from bench.host import host as place
from bench.request.cell import Cell
from bench.rows.store import Store
from bench.sweep import launchers, slurm
from bench.sweep.log import CellOutcome, Record, sweeps
from bench.sweep.plan import plan
from bench.sweep.sweep import summary
from tests import made
from tests.conftest import ROOT

CELL = ["length=256", "n=2", "threads=1", "measure=quality"]


def bench_run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def swept(tiny_t5, tmp_path_factory):
    """Two cells by joblib, two at a time."""
    results = tmp_path_factory.mktemp("swept")
    words = [*CELL, "method=vanilla,vcc", f"model={tiny_t5}", f"results={results}"]
    return results, words, bench_run("run", "-m", "launcher=joblib", "n_jobs=2", *words)


def test_joblib_runs_cells_side_by_side_and_their_rows_say_so(swept):
    results, _, said = swept
    assert said.returncode == 0, said.stderr
    assert "2 cells: 2 done, 0 failed" in said.stdout and "[2/2] method=" in said.stdout
    rows = Store(results).rows().to_pylist()
    assert {row["method"] for row in rows} == {"vanilla", "vcc"}
    assert {(row["launcher"], row["ran_beside"]) for row in rows} == {("joblib", "n_jobs=2")}
    [record] = sweeps(results)
    assert len({record.read_note(i)["pid"] for i in (0, 1)}) == 2
    assert {row["run_id"] for row in rows} == {record.id}


def test_what_one_launcher_has_done_the_other_does_not_start(swept):
    results, words, _ = swept
    said = bench_run("run", "-m", *words)
    assert said.returncode == 0 and said.stdout.splitlines()[0] == "2 cells · 2 done"
    assert "2 cells: 2 done, 0 failed (2 of them before)" in said.stdout
    assert Store(results).rows().num_rows == 2 and len(list(sweeps(results))) == 1


def test_status_tells_of_a_sweep_that_has_ended(swept, capsys):
    results, _, _ = swept
    code = dispatch(["status", "--results", str(results)])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and len(lines) == 3
    assert "method=vcc\tok" in lines[2]
    code = dispatch(["status", "--results", str(results), "--cancel"])
    assert code == 2 and "stop it where it runs" in capsys.readouterr().err


def test_two_sweeps_on_one_folder_at_once_both_finish(tiny_t5, tmp_path):
    words = ["run", "-m", *CELL, "method=vanilla", f"model={tiny_t5}", f"results={tmp_path}"]
    both = [
        subprocess.Popen([sys.executable, "-m", "bench", *words], cwd=ROOT, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]  # fmt: skip
    told = [each.communicate()[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert all("1 cell: 1 done, 0 failed" in out for out in told)
    rows = Store(tmp_path).rows().to_pylist()
    assert len({row["cell_key"] for row in rows}) == len({row["value"] for row in rows}) == 1
    [planned] = plan(words[2:]).cells
    assert planned.state == "done"


def test_an_interrupted_sweep_goes_on_with_the_same_command(
    tiny_t5, tmp_path, capsys, instant_cells
):
    words = ["run", "-m", *CELL, "method=vanilla", "seed=range(0,6)", f"model={tiny_t5}",
             f"results={tmp_path}"]  # fmt: skip
    running = subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # Processes that a shell starts in the background ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    until = time.monotonic() + 120
    while not any(r.read_note(1) for r in sweeps(tmp_path)):
        assert time.monotonic() < until
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    ended = Store(tmp_path).rows().num_rows
    assert 0 < ended < 6, told
    assert running.returncode == 130 and f"{ended} of 6 cells ended" in told
    code = dispatch(words)
    assert capsys.readouterr().out.startswith(f"6 cells · {ended} done · {6 - ended} to do")
    assert code == 0 and Store(tmp_path).rows().num_rows == 6


def test_a_terminated_run_says_that_finished_work_is_kept(tiny_t5, tmp_path):
    words = ["run", *CELL, "method=vanilla", f"model={tiny_t5}", f"results={tmp_path}"]
    running = subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, text=True, stderr=subprocess.PIPE
    )
    assert running.stderr and "×" in running.stderr.readline()
    running.terminate()
    _, told = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGTERM and "interrupted; finished work is kept" in told


def swept_until(then, tmp_path, capsys, monkeypatch):
    """The exit code and last lines of a sweep of three cells; `then` is done after the second."""
    stored = runner.run

    def run(cell, results, **how):
        row = stored(cell, results, **how)
        if cell.seed == 1:
            then()
        return row

    monkeypatch.setattr(runner, "run", run)
    code = dispatch(["run", "-m", *CELL, "method=vanilla", "seed=0,1,2", f"results={tmp_path}"])
    out = capsys.readouterr().out
    return code, out[out.index("3 cells: ") :].splitlines()


def test_a_folder_that_is_removed_meanwhile_is_told(tmp_path, capsys, instant_cells, monkeypatch):
    results = tmp_path / "rows"

    def remove():
        shutil.rmtree(results)
        results.mkdir()

    code, (head, *lines) = swept_until(remove, results, capsys, monkeypatch)
    assert code == 1 and head == "3 cells: 1 done, 2 failed"
    assert ["its row is gone" in line for line in lines] == [True, True, False]


def test_a_row_that_is_stored_counts_without_its_note(tmp_path, capsys, instant_cells, monkeypatch):
    results = tmp_path / "rows"
    removed = swept_until(lambda: shutil.rmtree(results / ".sweeps"), results, capsys, monkeypatch)
    code, (head, *_) = removed
    assert code == 0 and head == "3 cells: 3 done, 0 failed"


def test_a_folder_that_turns_read_only_is_told(tmp_path, capsys, instant_cells, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    turn = lambda: monkeypatch.setattr("bench.files.os.replace", refuse)  # noqa: E731
    code, (head, line, *_) = swept_until(turn, tmp_path, capsys, monkeypatch)
    assert code == 1 and head == "3 cells: 2 done, 1 failed"
    assert line.startswith("  seed=2: ") and "Read-only file system" in line


def test_shards_of_a_sweep_merge_into_all_of_it(tmp_path, capsys):
    words = [*CELL, "method=vanilla,vcc", "seed=0,1"]
    for i in (1, 2):
        mine = plan([*words, f"shard={i}/2"]).open
        for each in mine:
            cell = Cell.of(each.request)
            more = {"cell_key": cell.key, "cell": cell.to_json(), "status": "ok"}
            Store(tmp_path / str(i)).append([{**made.row(), **more}])
    parts = [str(tmp_path / str(i)) for i in (1, 2)]
    code = dispatch(["results", "merge", *parts, "--into", str(tmp_path / "all")])
    assert code == 0 and "4 rows added" in capsys.readouterr().out
    assert len(plan([*words, f"results={tmp_path / 'all'}"]).of("done")) == 4


@pytest.mark.parametrize("words", [["-m", "method=vanilla,vcc"], ["method=vcc"]])
@pytest.mark.parametrize("folder", ["file/rows", "file"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path, folder, words, capsys, monkeypatch
):
    no_child = lambda *_, **__: pytest.fail("a child was started")  # noqa: E731
    monkeypatch.setattr(cell_run.CellRun, "child", no_child)
    (tmp_path / "file").write_text("no folder")
    code = dispatch(["run", *CELL, *words, f"results={tmp_path / folder}"])
    told = capsys.readouterr().err.strip().splitlines()
    if "-m" not in words:
        assert told.pop(0).startswith("vcc × ")
    assert code == 2 and len(told) == 1 and "can't be written: " in told[0]


@pytest.mark.parametrize(
    ("state", "log", "status"),
    [
        ("OUT_OF_MEMORY", "", "oom_host"),
        ("FAILED", "slurmstepd: error: Exceeded job memory limit", "oom_host"),
        ("FAILED", "Traceback", "error"),
        ("TIMEOUT", "", "timeout"),
        ("CANCELLED", "", None),
        ("NODE_FAIL", "", None),
        ("PREEMPTED", "", None),
    ],
)
def test_what_slurm_says_of_a_lost_job(state, log, status):
    assert slurm.status_of(slurm.Job("1", state, ""), log) == status


def test_the_jobs_of_each_array_are_those_of_its_cells(tmp_path):
    """Also once those of the first array have left the queue."""
    asked = plan([*CELL, "seed=range(0,6)", f"results={tmp_path}"])
    record = Record.begin(asked, "")
    for ids in ({0: "9_0", 2: "9_1", 1: "9_2"}, {3: "12_0", 4: "12_1", 5: "13"}):
        record.submitted(ids)
    queue = [slurm.Job(i, "RUNNING", "n") for i in ("12_1", "12_0", "13", "9_[4-7]")]
    found = slurm.by_cell(Record.read(record.folder), queue)
    assert {i: job.id for i, job in found.items()} == {3: "12_0", 4: "12_1", 5: "13"}


def client(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def clients(folder: Path, monkeypatch: Any, queue: str, *accounts: str) -> None:
    """A cluster that takes no job, with these lines in its queue and its accounts."""
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    client(folder, "sbatch", "exit 1")
    client(folder, "squeue", f"echo '{queue}'")
    client(folder, "sacct", "; ".join(f"echo '{line}'" for line in accounts))


def test_the_queue_and_the_accounts_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    client(tmp_path, "squeue", "echo '7_0|RUNNING|n1|None'; echo '7_1|PENDING||Resources'")
    client(tmp_path, "sacct", "echo '7_0|CANCELLED by 0|n1|0:0'")
    assert [job.state for job in slurm.queued("x")] == ["RUNNING", "PENDING"]
    [ended] = slurm.accounted("x", time.time())
    assert (ended.id, ended.state) == ("7_0", "CANCELLED")
    client(tmp_path, "squeue", "echo 'slurm_load_jobs error' >&2; exit 1")
    with pytest.raises(slurm.SlurmError, match="squeue: slurm_load_jobs error"):
        slurm.queued("x")


def test_a_lost_cell_gets_its_row_where_there_is_no_gpu(tmp_path, monkeypatch):
    clients(tmp_path, monkeypatch, "", "7_0|OUT_OF_MEMORY|n1|0:125", "7_1|NODE_FAIL|n2|0:0")
    asked = plan([*CELL, "launcher=slurm", "device=cuda", "hydra.launcher.gpus_per_node=1",
                  "method=vanilla,vcc", f"results={tmp_path / 'rows'}"])  # fmt: skip
    record = Record.begin(asked, "")
    record.submitted({0: "7_0", 1: "7_1"})
    record.write_note(0, state="running", since=0.0, stage=["memory", 0, 0])
    assert slurm.settle_record(record) == 1
    [row] = Store(tmp_path / "rows").rows().to_pylist()
    assert (row["method"], row["status"], row["status_stage"]) == ("vanilla", "oom_host", "memory")
    assert row["device"] == "cuda" and row["node"] == "n1"
    assert [record.read_note(i)["status"] for i in (0, 1)] == ["oom_host", "node_fail"]


def test_of_a_lost_job_only_the_cell_that_ran_gets_a_row(tmp_path, monkeypatch):
    """The others of its group stay to do; where none had begun, the first gets it."""
    clients(tmp_path, monkeypatch, "", "7_0|OUT_OF_MEMORY|n1|0:125", "7_1|TIMEOUT|n2|0:0")
    asked = plan([*CELL, "launcher=slurm", "hydra.launcher.mem_gb=2", "method=vanilla,vcc",
                  "length=256,512", f"results={tmp_path / 'rows'}"])  # fmt: skip
    record = Record.begin(asked, "")
    record.submitted({0: "7_0", 1: "7_0", 2: "7_1", 3: "7_1"})
    record.write_note(0, state="running", since=0.0, stage=["memory", 0, 0])
    assert slurm.settle_record(record) == 2
    rows = Store(tmp_path / "rows").rows().to_pylist()
    cells = [json.loads(asked.open[i].cell.to_json()) for i in (0, 2)]
    assert [(row["method"], row["length"], row["status"]) for row in rows] == [
        (cell["method"]["name"], cell["length"], status)
        for cell, status in zip(cells, ("oom_host", "timeout"), strict=True)
    ]


def test_jobs_that_die_after_ctrl_c_become_rows_when_somebody_asks(tmp_path, monkeypatch, capsys):
    queue = "7_1|RUNNING|n1|None"
    clients(tmp_path, monkeypatch, queue, "7_0|OUT_OF_MEMORY|n1|0:125", "7_1|RUNNING|n1|0:0")
    rows = tmp_path / "rows"
    words = [*CELL, "launcher=slurm", "hydra.launcher.mem_gb=2", "method=vanilla,vcc"]
    record = Record.begin(plan([*words, f"results={rows}"]), "")
    record.submitted({0: "7_0", 1: "7_1"})
    assert slurm.settle(rows) == 0, "its process lives"
    content = record.content | {"pid": 1 << 30}
    (record.folder / "sweep.json").write_text(json.dumps(content))
    for _ in range(2):
        dispatch(["status", "--results", str(rows)])
    told = capsys.readouterr()
    assert told.err.count("1 lost jobs of this folder are rows now") == 1
    assert "oom_host" in told.out and "running" in told.out
    [row] = Store(rows).rows().to_pylist()
    assert (row["method"], row["status"], row["slurm_job_id"]) == ("vanilla", "oom_host", "7_0")
    [done, _] = plan([*words, f"results={rows}"]).cells
    assert done.state == "done"


def test_a_job_knows_its_place_and_its_company(tmp_path, monkeypatch):
    assert place.job_id() is None and place.Origin().columns()["launcher"] == "local"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    client(tmp_path, "squeue", "echo 5_2; echo 8")
    for name, value in {"SLURM_JOB_ID": "6", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2",
                        "SLURMD_NODENAME": "n1", "SLURM_RESTART_COUNT": "1",
                        "SLURM_MEM_PER_NODE": "2048"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert place.Origin("7").columns() == {
        "run_id": "7", "launcher": "slurm", "slurm_job_id": "5_2", "node": "n1", "attempt": 2
    }  # fmt: skip
    assert place.Origin(workers="n_jobs=2").neighbours() == {"job 8", "n_jobs=2"}
    left, limit = place.job_memory_left(), place.job_memory_limit()
    assert left is not None and left < limit == 2 << 30
    with pytest.raises(place.JobPreempted):
        place.check_preempted(signal.SIGTERM)
    place.check_preempted(signal.SIGKILL)


def test_timed_cells_have_their_node_alone_unless_told_otherwise():
    def more(launcher, timed):
        return launchers.job_parameters(launcher, "x", timed)["slurm_additional_parameters"]

    assert more({}, True) == {"exclusive": True} and more({}, False) == {}
    shared = {"additional_parameters": {"exclusive": False}}
    assert more(shared, True) == {"exclusive": False}
    told = launchers.check(launchers.SLURM, shared, [], 3)
    assert told and "3 timed cells" in told
    assert launchers.check(launchers.SLURM, {}, [], 3) is None
    assert launchers.check("joblib", {"n_jobs": 1}, [], 3) is None


def test_a_gpu_has_to_be_asked_of_the_cluster():
    cuda = [{"name": "a100", "kind": "cuda"}]
    with pytest.raises(RequestError, match=r"device=a100 needs a GPU .*gpus_per_node=1"):
        launchers.check(launchers.SLURM, {}, cuda, 0)
    launchers.check(launchers.SLURM, {"gpus_per_node": 1}, cuda, 0)
    launchers.check(launchers.SLURM, {"additional_parameters": {"gpus": 1}}, cuda, 0)
    launchers.check("basic", {}, cuda, 0)


def test_the_summary_names_each_cell_that_is_not_done(tmp_path):
    asked = plan([*CELL, "method=vanilla,vcc", f"results={tmp_path}"])
    results = [CellOutcome(1, "error", "first\nsecond"), CellOutcome(0, "ok")]
    lines = summary(asked, results).splitlines()
    assert lines == ["2 cells: 1 done, 1 failed", "  method=vanilla: error: first"]


def test_a_record_is_read_whole_or_not_at_all(tmp_path):
    asked = plan([*CELL, "method=vanilla,vcc", f"results={tmp_path}"])
    record = Record.begin(asked, "bench run -m …")
    assert record.read_note(0) == {} and [r.id for r in sweeps(tmp_path)] == [record.id]
    record.write_note(0, state="running", stage=["load", 0, 0])
    assert record.read_note(0)["stage"] == ["load", 0, 0]
    (record.folder / "cells" / "00001.json").write_text('{"state": "run')
    assert record.read_note(1) == {}
    content = Record.read(record.folder).content
    assert [cell["overrides"] for cell in content["cells"]] == [["method=vanilla"], ["method=vcc"]]
    assert Store(tmp_path).shards() == []
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RequestError, match="can't be written"):
        Record.begin(plan([*CELL, f"results={blocked}"]), "")
