"""One run of a cell at a time, and no run waits for one that has ended."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

import bench
from bench.execution import cell_run, runner
from bench.rows.store import Store
from bench.status import Status
from tests.conftest import ROOT

LOCK = f".{'a' * 64}.lock"
HOLD = """
import sys, time
from pathlib import Path
from bench.execution import cell_run
with cell_run.lock_held(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock of the cell."""
    command = [sys.executable, "-c", HOLD, tmp_path / LOCK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_run_waits_for_the_other_and_names_it(other, tmp_path):
    """The other is killed while this one is about to wait: neither its lock nor its file blocks."""
    lines = []

    def report(line):
        lines.append(line)
        other.send_signal(signal.SIGKILL)

    with cell_run.lock_held(tmp_path / LOCK, report):
        [line] = lines
        assert line.startswith(f"waiting for process {other.pid} on ")
        with cell_run.lock_held(tmp_path / ".another.lock", lines.append):
            assert len(lines) == 1
    assert not list(tmp_path.iterdir())


def test_what_killed_runs_left_is_removed_and_what_is_held_stays(other, tmp_path):
    for name in (f".{'d' * 64}.lock", ".rows-1.parquet.tmp", ".part-1.jsonl.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "rows-3.parquet").touch()
    held = [LOCK, f".{'b' * 64}.lock", ".rows-4.parquet.tmp"]
    others = [".package.lock", ".notes.tmp"]
    for name in others:
        (tmp_path / name).touch()
    with (tmp_path / held[1]).open("w") as lock, (tmp_path / held[-1]).open("w") as writes:
        for file in (lock, writes):
            fcntl.flock(file, fcntl.LOCK_EX)
        with cell_run.lock_held(tmp_path / ".mine.lock", print):
            assert {path.name for path in tmp_path.iterdir()} == {
                *held, *others, ".mine.lock", "rows-3.parquet"
            }  # fmt: skip


def test_of_several_that_wait_each_has_its_turn(tmp_path):
    """The file that they wait for is gone by then, or another one's."""
    path = tmp_path / LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def report(line):
        assert line == "waiting for another run of this cell"
        path.unlink()
        path.touch()
        os.close(lock)

    with cell_run.lock_held(tmp_path / LOCK, report):
        again = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)


def test_a_file_system_without_locks_is_told_and_the_cell_runs(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lines = []
    with cell_run.lock_held(tmp_path / LOCK, lines.append):
        [line] = lines
    assert line.endswith(f"{LOCK}: No locks available")


@pytest.fixture
def cell(tiny_t5, monkeypatch):
    """A cell of which nothing is measured."""
    monkeypatch.setattr(runner.stages, "planned", lambda cell: ())
    return bench.compose(f"model={tiny_t5}", "length=256", "n=2", "threads=1")


@pytest.mark.parametrize(
    ("status", "force", "reused"),
    [(Status.OK, False, True), (Status.OK, True, False), (Status.ERROR, False, False)],
)
def test_the_same_cell_started_twice_at_once_runs_once(cell, tmp_path, status, force, reused):
    """This run waits while the other stores its row, then finds it."""
    lock = (tmp_path / f".{cell.key}.lock").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def progress(*_):
        if not lock.closed:
            Store(tmp_path).append([runner.unmeasured_row(cell, status, "")])
            lock.close()

    row = bench.run(cell, tmp_path, force=force, progress=progress)
    assert row["reused"] == reused and row["attempt"] == (1 if reused else 2)
    assert Store(tmp_path).rows().num_rows == (1 if reused else 2)


def test_a_finished_cell_is_not_waited_for(cell, tmp_path):
    bench.run(cell, tmp_path)
    with cell_run.lock_held(tmp_path / f".{cell.key}.lock", print):
        assert bench.run(cell, tmp_path)["reused"]
