"""kill -9 of the supervisor, a child, its fork server or all, at random moments, loses no row and
doubles none.

The same command follows each kill, until it has ended once; then a new folder begins. There are 40
kills, or BENCH_KILLS; BENCH_KILLS_SEED draws other moments.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench.rows.store import Store
from tests.conftest import ROOT
from tests.trust.common import bench_run, command, environment

CONF = ROOT / "tests" / "trust" / "conf"
SWEEP = ["-m", "method=vanilla,patient", "length=256,300", "measure=quality", "n=4"]
CELLS = 4
KILLS = int(os.environ.get("BENCH_KILLS", "40"))
SEED = os.environ.get("BENCH_KILLS_SEED", "0")
PARTS = 2  # one for each worker of `make trust`
STABLE = (
    "cell_key", "method", "task", "length", "status", "metric", "value", "ci_lo", "ci_hi",
    "base_value", "value_diff", "value_diff_ci_lo", "value_diff_ci_hi", "metrics", "n_scored",
    "n_failed", "predictions_sha256", "base_predictions_sha256", "predictions_path",
    "tokens_in_mean", "tokens_seen_mean", "truncated_frac", "dataset_sha256", "weights_sha256",
)  # fmt: skip


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def below(parent: int) -> list[int]:
    """The fork server and the child that it forked, as far as they run."""
    children = children_of(parent)
    return children + [pid for child in children for pid in children_of(child)]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pids: list[int]) -> bool:
    """Whether these processes end, not necessarily at once, but before a time limit."""
    end = time.monotonic() + 120
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(map(alive, pids))


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def interrupted(model: Path, results: Path, moment: float, whom: str) -> tuple[bool, bool]:
    """Run the sweep and kill at the moment. Returns whether the command ended by itself, and
    whether only its descendants were killed, which also gives a result: a row `error`."""
    run = subprocess.Popen(
        command(model, results, *SWEEP),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment(CONF),
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(moment)
        return run.returncode == 0, False
    found = below(run.pid)
    victims = {
        "supervisor": [run.pid],
        "child": found[1:],
        "fork server": found[:1],
        "both": [*found, run.pid],
    }[whom]
    for pid in victims:
        kill(pid)
    run.wait()
    assert gone(found), "a child outlived its supervisor"
    return run.returncode == 0, whom in ("child", "fork server") and bool(victims)


def stable(results: Path) -> dict[str, tuple[object, ...]]:
    """The values of the ok rows that aren't times, by cell; no cell may have two rows."""
    store = Store(results)
    rows = [row for row in store.rows().to_pylist() if row["status"] == "ok"]
    assert not store.warnings
    found = {row["cell_key"]: tuple(row[name] for name in STABLE) for row in rows}
    assert len(found) == len(rows), "a cell has two rows"
    return found


@pytest.fixture(scope="module")
def undisturbed(tiny_t5, tmp_path_factory):
    """The rows of a sweep that nobody disturbs, and its seconds."""
    results = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    said = bench_run(CONF, tiny_t5, results, *SWEEP)
    took = time.monotonic() - began
    assert said.returncode == 0, said.stderr
    rows = stable(results)
    assert len(rows) == CELLS
    return rows, took


@pytest.mark.parametrize("part", range(PARTS))
def test_kills_at_random_moments_lose_nothing_and_double_nothing(
    part, undisturbed, tiny_t5, tmp_path
):
    rows, took = undisturbed
    drawn = random.Random(f"kills {SEED} {part}")
    kills = sweeps = errors = 0
    while kills < KILLS / PARTS:
        results = tmp_path / f"sweep-{sweeps}"
        sweeps += 1
        before: dict[str, tuple[object, ...]] = {}
        while kills < KILLS / PARTS:
            whom = drawn.choice(["supervisor", "child", "fork server", "both"])
            ended, failed = interrupted(tiny_t5, results, drawn.uniform(0, took), whom)
            now = stable(results) if results.exists() else {}
            assert before.items() <= now.items(), "a row was lost"
            before = now
            if ended:
                break
            kills, errors = kills + 1, errors + failed
        said = bench_run(CONF, tiny_t5, results, *SWEEP)
        assert said.returncode == 0, said.stderr
        assert stable(results) == rows
    print(f"{kills} kills in {sweeps} sweeps; {errors} of a child alone")


def test_ctrl_c_stops_the_child_and_the_same_command_goes_on(undisturbed, tiny_t5, tmp_path):
    rows, _ = undisturbed
    results, hold = tmp_path / "rows", tmp_path / "hold"
    hold.touch()
    run = subprocess.Popen(
        command(tiny_t5, results, *SWEEP),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # The sweep can't end before the signal comes, however busy the machine is.
        env=environment(CONF, BENCH_PATIENT_HOLD=str(hold)),
        # Processes that a shell starts in the background ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while run.poll() is None and not stable(results):
        time.sleep(0.2)
    while run.poll() is None and not (children := below(run.pid)):
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate()
    hold.unlink()
    assert run.returncode == 130, said
    assert "interrupted; finished work is kept" in said
    assert gone(children)
    kept = stable(results)
    assert 0 < len(kept) < CELLS
    again = bench_run(CONF, tiny_t5, results, *SWEEP)
    assert again.returncode == 0, again.stderr
    assert f"({len(kept)} of them before)" in again.stdout
    assert stable(results) == rows
