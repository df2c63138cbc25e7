"""One run of a cell at a time, and one training: a lock in its folder.

The lock is the kernel's (flock), also through NFS, so it ends with the process that holds it,
however that ends. A stale lock file does not block other runs. The file names the
owner to those who wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench.host import job
from bench.rows.shards import remove_leftovers

OWNER_BYTES = 1 << 12


@contextlib.contextmanager
def held(path: Path, report: Callable[[str], object]) -> Iterator[None]:
    """Hold a lock, once what killed runs left in its folder is removed; while another holds it,
    wait. `report` is called with a line that names the other, or states that there is no lock, on a
    file system that has none: the block then runs without."""
    remove_leftovers(path.parent)
    lock = None
    try:
        lock = _locked(path, report)
    except OSError as error:
        report(f"without a lock, so don't start this cell twice at once: {path}: {error.strerror}")
    try:
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(lock)


def _locked(path: Path, report: Callable[[str], object]) -> int:
    """The descriptor of the locked file, which closing unlocks. Raises OSError."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for {_owner(lock)}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    _write_owner(lock)
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its last owner removed the file: a later process locks another


def _write_owner(lock: int) -> None:
    owner = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "slurm_job_id": job.job_id(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(owner).encode(), 0)


def _owner(lock: int) -> str:
    try:
        owner = json.loads(os.pread(lock, OWNER_BYTES, 0))
        of_job = f" (job {owner['slurm_job_id']})" if owner["slurm_job_id"] else ""
        since = f"at work on it since {owner['since']}"
        return f"process {owner['pid']} on {owner['host']}{of_job}, {since}"
    except (ValueError, KeyError, TypeError):
        return "another run of this cell"
