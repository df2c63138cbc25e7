"""Sweeps on a real Slurm of one node: tests/cluster/run starts one and runs this."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.rows.store import Store
from bench.sweep.log import sweeps
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(
    "SLURM_CONF" not in os.environ, reason="no Slurm: tests/cluster/run starts one"
)
CELL = ["length=256", "n=2", "measure=quality"]
SLURM = ["launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=2"]
FOUR = ["method=vanilla,vcc", "length=256,512"]
ROGUES = ROOT / "tests" / "rogues" / "conf"
LIMIT_S = 600.0


def bench(
    *words: str, limit_s: float = LIMIT_S, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True, text=True, cwd=ROOT,
        timeout=limit_s, env={**os.environ, **environment},
    )  # fmt: skip


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def jobs() -> list[str]:
    """Id and state of every job so far."""
    return slurm("sacct", "-n", "-P", "-X", "-o", "JobID,State").split()


def queue() -> str:
    return slurm("squeue", "-h")


def rows(results: Path) -> list[dict]:
    return Store(results).rows().to_pylist()


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    results = tmp_path_factory.mktemp("four")
    words = ["run", "-m", *SLURM, *CELL, *FOUR, f"results={results}"]
    return results, words, bench(*words)


def test_a_sweep_of_two_by_two_is_four_rows_of_four_jobs(four):
    results, _, done = four
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 cells: 4 done, 0 failed" in done.stdout
    stored = rows(results)
    points = {(row["method"], row["length"]) for row in stored}
    assert points == {(m, n) for m in ("vanilla", "vcc") for n in (256, 512)} and len(stored) == 4
    for row in stored:
        assert row["status"] == "ok" and row["threads"] == 1
        assert row["launcher"] == "slurm" and row["node"] == "localhost" and row["attempt"] == 1
        assert row["ran_beside"]
    assert len({row["slurm_job_id"] for row in stored}) == 4
    assert len({row["host_id"] for row in stored}) == 1
    done = bench("status", "--results", str(results), "--format", "table")
    assert done.returncode == 0 and "4 ok" in done.stdout


def test_the_same_command_again_submits_nothing(four):
    results, words, _ = four
    before = jobs()
    done = bench(*words)
    assert done.returncode == 0 and "4 cells · 4 done" in done.stdout
    assert jobs() == before and len(rows(results)) == 4


def test_cells_that_share_their_prompts_share_a_job(tmp_path):
    words = [*SLURM, *CELL, "method=vanilla,snapkv,tova", "method.budget=0.5",
             "model=embedded-llama", "task=longeval_lines", f"results={tmp_path}"]  # fmt: skip
    done = bench("run", "-m", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = rows(tmp_path)
    assert {row["method"] for row in stored} == {"vanilla", "snapkv", "tova"}
    assert [row["status"] for row in stored] == ["ok"] * 3 and queue() == ""
    assert len({row["slurm_job_id"] for row in stored}) == 1
    assert sum(row["batched_answers"] or 0 for row in stored) > 0


def test_joblib_gives_the_same_keys_and_the_same_quality(four, tmp_path):
    results, _, _ = four
    # Two of the four, with the threads of their job.
    done = bench("run", "-m", "launcher=joblib", "n_jobs=2", "threads=1", *CELL,
                 "method=vanilla,vcc", f"results={tmp_path}")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    on_slurm = {row["cell_key"]: row for row in rows(results)}
    here = rows(tmp_path)
    assert len(here) == 2
    for row in here:
        other = on_slurm[row["cell_key"]]
        for name in ("value", "ci_lo", "ci_hi", "predictions_sha256", "score_by_length"):
            assert row[name] == other[name], name
        assert row["launcher"] == "joblib" and row["ran_beside"] == "n_jobs=2"


ENDS = {
    "fine": ("ok", ""),
    "raises": ("error", "seven is not eight"),
    "exits": ("error", "exit code 9 without a result"),
    "hoards": ("oom_host", "allocate memory"),
    "shares": ("oom_host", "killed for memory"),
    "orphans": ("error", "ended without a result"),
}
"""Method → status of its row and part of the reason. The last two end their whole job."""


def test_cells_that_end_badly_are_rows_and_the_others_finish(tmp_path):
    done = bench("run", "-m", *SLURM, *CELL, f"method={','.join(ENDS)}", f"results={tmp_path}",
                 BENCH_CONF_PATH=str(ROGUES))  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "6 cells: 1 done, 5 failed" in done.stdout
    by_method = {row["method"]: row for row in rows(tmp_path)}
    assert {name: row["status"] for name, row in by_method.items()} == {
        name: status for name, (status, _) in ENDS.items()
    }, done.stdout
    for name, (_, reason) in ENDS.items():
        assert reason in (by_method[name]["status_detail"] or "")
        assert by_method[name]["slurm_job_id"]
    assert queue() == ""


def test_a_stopped_sweep_leaves_the_queue_and_goes_on_later(tmp_path):
    words = ["run", "-m", *SLURM, "length=256", "n=2", "measure=speed", "method=hangs,raises",
             f"results={tmp_path}"]  # fmt: skip
    environment = {**os.environ, "BENCH_CONF_PATH": str(ROGUES)}
    sweep = subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hears_ctrl_c,
    )  # fmt: skip
    wait_for(lambda: any(r.read_note(0).get("stage") for r in sweeps(tmp_path)))
    [record] = sweeps(tmp_path)
    # Timed cells have the node for themselves, so the second waits.
    assert len(queue().splitlines()) == 2 and record.read_note(1) == {}
    scripts = [p.read_text() for p in (record.folder / ".submitit").rglob("*.sh")]
    assert scripts and all("#SBATCH --exclusive" in text for text in scripts)
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 130 and "its jobs stay in the queue" in errors
    pid = record.read_note(0)["pid"]
    done = bench("status", "--results", str(tmp_path), "--cancel", record.id)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: queue() == "" and not Path(f"/proc/{pid}").exists())
    assert rows(tmp_path) == []
    done = bench("plan", *words[2:], BENCH_CONF_PATH=str(ROGUES))
    assert done.stdout.count("to do") == 2


def test_a_partition_that_does_not_exist_is_reported(tmp_path):
    done = bench("run", "-m", *SLURM, *CELL, "method=vanilla", "hydra.launcher.partition=none",
                 f"results={tmp_path}")  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "Slurm takes no job" in done.stderr and "partition" in done.stderr


@pytest.mark.nightly
def test_a_cell_stopped_by_the_time_limit_is_requeued_and_continues(tmp_path):
    # 30 rows take at least 150 seconds, and one attempt has two minutes.
    done = bench(
        "run", "-m", *SLURM, "length=256", "n=30", "measure=quality", "method=dawdles",
        "hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=10",
        "hydra.launcher.max_num_timeout=9", f"results={tmp_path}",
        limit_s=1800, BENCH_CONF_PATH=str(ROGUES),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows(tmp_path)
    assert row["status"] == "ok" and row["n_scored"] == 30 and row["attempt"] > 1
    parts = sorted((tmp_path / row["predictions_path"]).glob("part-*.jsonl"))
    assert sum(len(part.read_text().splitlines()) for part in parts) == 30, "none was done twice"


@pytest.mark.nightly
def test_a_cell_that_uses_up_its_tries_is_a_row(tmp_path):
    done = bench(
        "run", "-m", *SLURM, *CELL, "method=hangs", "hydra.launcher.timeout_min=1",
        "hydra.launcher.signal_delay_s=10", "hydra.launcher.max_num_timeout=0",
        f"results={tmp_path}", limit_s=600, BENCH_CONF_PATH=str(ROGUES),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    [row] = rows(tmp_path)
    assert row["status"] == "timeout" and "the job's time limit" in row["status_detail"]


def hears_ctrl_c() -> None:
    """Processes that a shell starts in the background ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition, limit_s: float = 90.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.5)
