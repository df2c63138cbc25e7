"""One timed call on a GPU: events on the current stream around it, the L2 cache cleared before it,
and a check for work that is still running after it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor

from bench.measure.integrity import fail_check

L2_TIMES = 2
LEAST_FLUSHED_BYTES = 64 << 20
EMPTY_CALLS = 20
CALL_SLACK_NS, CALL_SLACK = 50_000, 0.02
"""The time for which work may continue after a call: nanoseconds, plus a share of its time."""


class TimedCall(NamedTuple):
    """One call's output, and nanoseconds.

    took     between the events, on the GPU's clock
    wall     by the host's clock until every stream was idle
    left     after the last event until every stream was idle, minus that of an empty call
    """

    logits: Tensor
    took: int
    wall: int
    left: int


class GpuTimer:
    """Times calls on the current stream. Make it before the method: it measures the time of an
    empty call, and keeps a buffer of at least twice the L2 cache."""

    def __init__(self) -> None:
        self.buffer = flush_buffer()
        self.empty_left = 0
        empty = [self(lambda: self.buffer) for _ in range(EMPTY_CALLS)]
        self.empty_left = int(statistics.median(call.left for call in empty))

    def __call__(self, call: Callable[[], Tensor]) -> TimedCall:
        """Raises IntegrityError when the call leaves another stream current."""
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        self.buffer.zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        started = perf_counter_ns()
        start.record()
        logits = call()
        end.record()
        end.synchronize()
        ended = perf_counter_ns()
        torch.cuda.synchronize()
        idle = perf_counter_ns()
        if torch.cuda.current_stream() != stream:
            torch.cuda.set_stream(stream)
            fail_check("changes global state: another CUDA stream is current after a call")
        took = int(start.elapsed_time(end) * 1e6)
        return TimedCall(logits, took, wall=idle - started, left=idle - ended - self.empty_left)


def flush_buffer() -> Tensor:
    """A buffer that is overwritten to clear the L2 cache of the current GPU."""
    cache: int = getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0)
    size = max(LEAST_FLUSHED_BYTES, L2_TIMES * cache)
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def check_streams(left_ns: Sequence[int], call_ns: float) -> None:
    """Raises IntegrityError when work continues after the last event on the current stream: it runs
    on another stream, and isn't timed. The median decides, since any call may be interrupted."""
    left = statistics.median(left_ns or [0])
    if left > CALL_SLACK_NS + CALL_SLACK * call_ns:
        fail_check(f"works on another CUDA stream: {left / 1e6:.1f} ms after the end of each call")
