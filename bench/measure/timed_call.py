"""One timed call of a model with a method in it, and the checks around each call."""

from __future__ import annotations

import math
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter_ns
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bench.execution import arms
from bench.host import gpu, linux
from bench.measure import integrity
from bench.measure.integrity import check_plain_tensor, fail_check
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.base import Family
from methods.base import Method

Forward = Callable[[], Tensor]
"""A call of the model that gives logits."""
Drawn = Sequence[Tensor | None]
"""For each call the token ids of its input; None: the call draws its own."""

MOST_CALLS = 256
"""Total number of calls that the supervisor requests from a process."""
KEPT_LOGITS = 4096
"""Logits kept of each timed call, evenly spaced."""
L2_TIMES = 2
LEAST_FLUSHED_BYTES = 64 << 20
EMPTY_CALLS = 20
CALL_SLACK_NS, CALL_SLACK = 50_000, 0.02
"""The time for which work may continue after a call: nanoseconds, plus a share of its time."""


# A call on a GPU: events on the current stream around it, the L2 cache cleared before it, and a
# check for work that is still running after it.


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


class Process:
    """State of this process before its method was built: torch's global state, and on a GPU the
    timer and the clocks. `notes` are remarks for the row."""

    def __init__(self, device: str = "cpu") -> None:
        # A large enough operation starts all of torch's threads.
        torch.ones(torch.get_num_threads() << 16, device=device).sin_().sum().item()
        self.state = integrity.global_state()
        self.gpu_timer = GpuTimer() if device == "cuda" else None
        self.clocks = gpu.state() if self.gpu_timer else None
        self.notes: list[str] = []

    def restore(self) -> None:
        """Restore torch's global state; the first change by a method is noted."""
        for name in integrity.restore_state(self.state):
            note = f"the method changes global state: {name}"
            if note not in self.notes:
                self.notes.append(note)

    def gpu_columns(self) -> dict[str, Any]:
        """Columns on clocks and throttling of the GPU so far, and on the clearing of the L2 cache;
        none on a CPU."""
        if self.gpu_timer is None or self.clocks is None:
            return {}
        columns = gpu.clock_columns(self.clocks, gpu.state())
        return columns | {"gpu_flushed_bytes": self.gpu_timer.buffer.nbytes}


class Answer(NamedTuple):
    """Answer of a timed call: some of its logits, and the index of each row's largest logit."""

    logits: Tensor
    first: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> Answer:
        flat = logits.detach().flatten()
        step = math.ceil(len(flat) / KEPT_LOGITS)
        return cls(flat[::step].float().cpu(), logits.argmax(-1).flatten().cpu())


class Sample(NamedTuple):
    """Mean nanoseconds of a sample's calls: the whole time, and the time in which the main thread
    waited for a processor."""

    wall_ns: int
    waited_ns: int

    @property
    def less_waits_ns(self) -> int:
        return max(1, self.wall_ns - self.waited_ns)


@dataclass(eq=False)
class Arm:
    """One timed call of the model with `method` in it: by the monotonic clock on the CPU, by events
    on a GPU (GpuTimer). Called with the number of an input, it returns nanoseconds.

    process  this process before the method was built
    took     nanoseconds of each call
    waits    nanoseconds of each call in which its main thread waited for a processor
    left     on a GPU, nanoseconds from the end of each call until all streams were idle
    faults   page faults of each call
    wall     on a GPU, nanoseconds of each call by the host's clock, kernel launches included
    given    the answer of each call
    last     the last answer to an input of each shape
    """

    family: Family
    method: Method
    inputs: PerturbedInputs
    device: str
    process: Process = field(default_factory=Process)
    in_process: ClassVar[bool] = True
    """Whether the method computes only in this process."""
    took: list[int] = field(default_factory=list, init=False)
    waits: list[int] = field(default_factory=list, init=False)
    left: list[int] = field(default_factory=list, init=False)
    faults: list[int] = field(default_factory=list, init=False)
    wall: list[int] = field(default_factory=list, init=False)
    given: list[Answer] = field(default_factory=list, init=False)
    last: dict[torch.Size, Tensor] = field(default_factory=dict, init=False)

    def __call__(self, i: int, drawn: Tensor | None = None) -> int:
        self.family.method = self.method
        forward = self.prepared(i, drawn)
        attended, faults, waited = self.family.calls, page_faults(), linux.waited_ns()
        took, logits = self.timed(forward)
        self.took.append(took)
        self.waits.append(linux.waited_ns() - waited)
        self.faults.append(page_faults() - faults)
        self.process.restore()
        self.check(i, logits, attended)
        return took

    def check(self, i: int, logits: Tensor, attended: int) -> None:
        """Keep the answer of call i. Raises IntegrityError if it isn't a plain tensor, equals the
        last answer to an input of this shape, or was given without a call of the method."""
        check_plain_tensor(logits)
        shape = self.shape_of(i)
        if shape in self.last and torch.equal(logits, self.last[shape]):
            fail_check("returns a cached output: another input gave the same")
        self.check_attended(attended)
        self.given.append(Answer.of(logits))
        self.last[shape] = logits

    def shape_of(self, i: int) -> torch.Size:
        """Shape of the input of call i."""
        return self.inputs.current(i)[0].shape

    def check_attended(self, before: int) -> None:
        """Raises IntegrityError if the timed call didn't run the method; `before` is the number of
        its attention calls before the timed call."""
        integrity.check_attention_ran(self.family, before)

    def of(self, method: Method) -> Self:
        """An arm of another method with the same inputs."""
        return replace(self, method=method)

    def twin(self) -> Method | None:
        """Exact attention by the engine that runs the method; None: that is vanilla."""
        return self.method.exact_twin()

    def draw(self, i: int, calls: int) -> Drawn:
        """New inputs for `calls` calls from number i on, for both arms of a pair."""
        return [self.inputs.perturbed(i + j)[0].clone() for j in range(calls)]

    def prepared(self, i: int, drawn: Tensor | None = None) -> Forward:
        """The forward that call i times, on the drawn input or on a new one."""
        return partial(arms.first_token, self.family, *self.inputs.perturbed(i, drawn))

    @property
    def most_calls(self) -> int:
        """The largest number of calls that `answered` may make after one `read`."""
        return MOST_CALLS

    def drawn(self, calls: int) -> dict[str, Tensor]:
        """New inputs for `calls` calls of `answered`, in this process or another one."""
        inputs = enumerate(self.draw(0, calls))
        return {str(i): ids for i, ids in inputs if ids is not None}

    def read(self, inputs: Mapping[str, Tensor]) -> None:
        """Prepare untimed for the calls on these inputs."""

    def answered(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits of a call on each of the inputs."""
        self.family.method = self.method
        return {i: self.prepared(int(i), ids)().float() for i, ids in inputs.items()}

    def catch_up(self, calls: int) -> None:
        """Brings this arm, untimed, to the state of one that makes `calls` more calls; does nothing
        if calls don't depend on earlier ones."""

    def sample(self, i: int, calls: int, drawn: Drawn = ()) -> Sample:
        """Sample i, of `calls` calls."""
        given = drawn or [None] * calls
        wall_ns = sum(self(i * calls + j, ids) for j, ids in enumerate(given)) // calls
        return Sample(wall_ns, sum(self.waits[-calls:]) // calls)

    @property
    def usual_ns(self) -> int:
        """Nanoseconds of a call: the median of the last three."""
        return max(1, int(statistics.median(self.took[-3:])))

    def reset(self) -> None:
        """Forget the records of the calls so far."""
        for name in ("took", "waits", "left", "faults", "wall", "given"):
            getattr(self, name).clear()

    def walls(self, calls: int) -> list[int] | None:
        """The wall times, grouped like the samples; None if the host's clock times the calls."""
        starts = range(0, len(self.wall), calls)
        return [sum(self.wall[i : i + calls]) // calls for i in starts] or None

    def timed(self, forward: Forward) -> tuple[int, Tensor]:
        """Nanoseconds of a call, and its logits."""
        if self.process.gpu_timer is None:
            started = perf_counter_ns()
            logits = forward()
            return perf_counter_ns() - started, logits
        timed = self.process.gpu_timer(forward)
        self.wall.append(timed.wall)
        self.left.append(timed.left)
        return timed.took, timed.logits


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
