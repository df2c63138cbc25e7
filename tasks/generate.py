"""What the generators' commands share: chunks made in parallel and taken in order, with a bar."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")
QUIET_S = 2


def chunks(make: Callable[..., list[T]], arguments: tuple[Any, ...], jobs: int) -> Iterator[T]:
    """What make(*arguments, 0), make(*arguments, 1), … give, one after the other; `jobs` processes
    work ahead, and the order doesn't depend on their number."""
    if jobs == 1:
        for number in count():
            yield from make(*arguments, number)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        ahead: deque[Future[list[T]]] = deque()
        try:
            for number in count():
                ahead.append(pool.submit(make, *arguments, number))
                if len(ahead) > 2 * jobs:
                    yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def bar(items: Iterator[T], total: int, what: str) -> Iterator[T]:
    """The first `total` items; on a terminal a progress bar, once it has taken two seconds."""
    from rich.console import Console
    from rich.progress import Progress

    begin = time.monotonic()
    console = Console(stderr=True)
    progress = Progress(console=console, disable=not sys.stderr.isatty(), transient=True)
    task = progress.add_task(what, total=total)
    try:
        for done, item in enumerate(items, start=1):
            yield item
            if not progress.live.is_started and time.monotonic() - begin > QUIET_S:
                progress.start()
            progress.update(task, completed=done)
            if done == total:
                break
    finally:
        progress.stop()
