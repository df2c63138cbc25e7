"""The clock that times calls against the kernel's, read by functions that were bound before any
method was loaded."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bench.measure.failed_check import fail_check

SLACK_NS = 1_000_000
CALL_SLACK_NS, CALL_SLACK = 50_000, 0.02
"""Between the kernel's readings around a call and the clock's: two readings take 0.2 µs."""

kernel_ns = time.monotonic_ns
_usage = resource.getrusage


def cpu_ns() -> int:
    """Processor time of all threads of this process, by the kernel."""
    used = _usage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


@contextmanager
def compared(elapsed_ns: Callable[[], int], most_threads: int) -> Iterator[None]:
    """Raises IntegrityError when other time passes inside by `elapsed_ns` than by the kernel's
    clock, or less than `most_threads` threads need for what they compute. The kernel's clock is
    read before and after the other, so that a delay between the two is no difference."""
    before = kernel_ns()
    claimed_ns, used_ns = -elapsed_ns(), -cpu_ns()
    after = kernel_ns()
    yield
    used_ns += cpu_ns()
    least_ns = kernel_ns() - after - SLACK_NS
    claimed_ns += elapsed_ns()
    most_ns = kernel_ns() - before + SLACK_NS
    if not least_ns <= claimed_ns <= most_ns:
        fail_check(
            f"replaces the clock: {claimed_ns / 1e6:,.0f} ms passed by the clock that times calls, "
            f"{most_ns / 1e6:,.0f} ms by the kernel's"
        )
    if used_ns > most_threads * (most_ns + 20 * SLACK_NS):  # in ticks of up to 10 ms
        fail_check(
            f"replaces the clock: {used_ns / 1e6:,.0f} ms of processor time in "
            f"{most_ns / 1e6:,.0f} ms by the clock, on at most {most_threads} threads"
        )


def check_calls(hidden_ns: Sequence[int], call_ns: int) -> None:
    """Raises IntegrityError when calls are shorter by the clock that times them than by the
    kernel's; `hidden_ns` are the differences. A median, as any call may be interrupted."""
    hidden = statistics.median(hidden_ns or [0])
    if hidden > CALL_SLACK_NS + CALL_SLACK * call_ns:
        fail_check(
            f"replaces the clock: {hidden / 1e6:.1f} ms of each call are missing from its time"
        )
