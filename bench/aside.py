"""Work that is done in a fork of this process: what it imports and allocates is gone with it.

The supervisor waits beside what is measured, so it stays small: parquet and statistics, which need
more memory than all the rest of it, come and go.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from bench import system
from bench.shards import StoreError

T = TypeVar("T")


def aside(work: Callable[[], T]) -> T:
    """What `work` returns, or raises: either is pickled. The fork ends with this process. Raises
    StoreError when it was killed."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _work(work, write, parent)
    os.close(write)
    try:
        with open(read, "rb") as answer:
            content = answer.read()
    finally:
        _, status = os.waitpid(pid, 0)
    if not content:
        raise StoreError(
            f"the process that reads and stores rows ended with code "
            f"{os.waitstatus_to_exitcode(status)}; the same command goes on"
        )
    done, value = pickle.loads(content)
    if not done:
        raise value
    result: T = value
    return result


def _work(work: Callable[[], T], write: int, parent: int) -> NoReturn:
    code = 1
    try:
        system.die_with_parent()
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)
        try:
            content = pickle.dumps((True, work()))
        except BaseException as error:
            content = pickle.dumps((False, error))
        with open(write, "wb") as answer:
            answer.write(content)
        code = 0
    finally:
        os._exit(code)
