"""Threads and processes that a method leaves behind: work that goes on is in no call's time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from pathlib import Path

from bench.measure.failed_check import fail_check

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
RETRIES, RETRY_S = 100, 0.02  # an end may take its time on a busy machine


def thread_ids() -> frozenset[int]:
    """The kernel's ids of this process's threads, native ones included; empty without /proc."""
    with contextlib.suppress(OSError):
        return frozenset(map(int, os.listdir("/proc/self/task")))
    return frozenset()


def adopt_orphans() -> None:
    """Have the kernel make each descendant whose parent ends a child of this process, so that a
    daemon can't leave it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def check(most_threads: int) -> None:
    """Raises IntegrityError when another Python thread, a child process or more than
    `most_threads` threads are alive."""
    check_python_threads()
    check_processes()
    for _ in range(RETRIES):  # a thread that OpenMP has ended may take a moment
        if len(thread_ids()) <= most_threads:
            return
        time.sleep(RETRY_S)
    fail_check("works on another thread: a native one is alive that wasn't there before")


def check_python_threads() -> None:
    main = threading.main_thread().ident
    # A progress bar's thread only wakes to redraw it.
    bars = {t.ident for t in threading.enumerate() if type(t).__module__.startswith("tqdm.")}
    if set(sys._current_frames()) - {main} - bars:
        fail_check("works on another thread: one is alive besides the main one")


def check_processes() -> None:
    """Raises IntegrityError when a child process is alive."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                fail_check("works in another process: this one has children")
