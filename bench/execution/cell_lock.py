"""Allows one run of a cell, and one training, at a time, by a lock in its folder.

The kernel holds the lock (flock), also through NFS, so it is released whenever its process ends. A
stale lock file does not block other runs. The file names the owner for waiting processes.
"""

from __future__ import annotations

import contextlib
import fcntl
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
    """Hold a lock inside; wait while another process holds it. First, leftovers of killed runs are
    removed from its folder. `report` is called with a line that names the other process, or reports
    that the file system has no locks: the block then runs without one."""
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
    """The descriptor of the locked file; closing it unlocks the file. Raises OSError."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, OWNER_BYTES, 0).decode(errors="replace")
                report(f"waiting for {owner or 'another run of this cell'}")
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
    of_job = f" (job {job.job_id()})" if job.job_id() else ""
    owner = f"process {os.getpid()} on {socket.gethostname()}{of_job}"
    since = datetime.now(UTC).isoformat(timespec="seconds")
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{owner}, at work on it since {since}".encode(), 0)
