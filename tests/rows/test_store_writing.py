"""Rows survive any failure of their writer: concurrent writers, kills, a full disk."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.rows.shards import StoreError, remove_leftovers
from bench.rows.store import Store, check
from tests.rows.conftest import ids, row


def append_three(folder: Path, writer: int) -> None:
    for i in range(3):
        Store(folder).append([row(f"{writer}-{i}")])


def test_sixteen_processes_append_at_once(store):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.rows.store", "pyarrow.parquet", "pandas"])
    writers = [context.Process(target=append_three, args=(store.folder, n)) for n in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 16
    keys = store.rows(["cell_key"])["cell_key"].to_pylist()
    assert sorted(keys) == sorted(f"{n}-{i}" for n in range(16) for i in range(3))
    assert not store.warnings
    assert all(path.suffix == ".parquet" for path in store.folder.iterdir())


@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_killed_in_the_middle_of_an_append(store, stage):
    store.append([row(row_id="earlier")])
    code = (
        "import os, sys, time; from bench.rows.store import Store\n"
        "def stop(*args): print('here', flush=True); time.sleep(60)\n"
        f"os.{stage} = stop\n"
        "Store(sys.argv[1]).append([{'cell_key': 'k', 'status': 'ok'}])"
    )
    command = [sys.executable, "-c", code, str(store.folder)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"here\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert ids(store) == ["earlier"] and not store.warnings
    (leftover,) = store.folder.glob(".*")
    assert check(store.folder, repair=True) == [] and leftover.exists()  # its writer may live
    os.utime(leftover, (time.time() - 7200,) * 2)
    assert [problem.kind for problem in check(store.folder, repair=True)] == ["leftover"]
    assert not leftover.exists()


def test_a_file_that_is_being_written_is_no_leftover(store, monkeypatch):
    flock, sync = fcntl.flock, os.fsync
    calls: list[str] = []

    def before(file: Any, kind: int) -> None:
        if not calls:
            calls.append("lock")
            remove_leftovers(store.folder)  # it has no lock yet
            assert not list(store.folder.iterdir())
        flock(file, kind)

    def while_written(handle: int) -> None:
        calls.append("sync")
        remove_leftovers(store.folder)
        sync(handle)

    monkeypatch.setattr(fcntl, "flock", before)
    monkeypatch.setattr(os, "fsync", while_written)
    store.append([row(row_id="kept")])
    assert ids(store) == ["kept"] and calls[:2] == ["lock", "sync"]


def test_file_size_limit_leaves_nothing_behind(store):
    code = (
        "import resource, sys\n"
        "from bench.rows.store import Store\nfrom bench.rows.shards import StoreError\n"
        "Store(sys.argv[1]).append([{'cell_key': 'earlier', 'status': 'ok'}])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: Store(sys.argv[1]).append([{'cell_key': 'k', 'status': 'ok'}])\n"
        "except StoreError as error: print(error)"
    )
    run = [sys.executable, "-c", code, str(store.folder)]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert said == f"cannot write to {store.folder}: File too large\n"
    assert store.rows(["cell_key"])["cell_key"].to_pylist() == ["earlier"]
    assert len(list(store.folder.iterdir())) == 1


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write to .*file/rows: Not a directory"):
        Store(tmp_path / "file" / "rows").append([row()])
