"""Parallel generation in a fixed order, and the progress bar of the generators' commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count, islice
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def chunks(make: Callable[..., list[T]], arguments: tuple[Any, ...], jobs: int) -> Iterator[T]:
    """The items of make(*arguments, 0), make(*arguments, 1), … in this order. `jobs` processes
    compute ahead; the result doesn't depend on their number."""
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


def bar(items: Iterator[T], total: int, what: str) -> Iterable[T]:
    """The first `total` items, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(
        islice(items, total), what, total,
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
