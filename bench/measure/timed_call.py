"""One timed call of a model with a method in it, and what is checked around each call."""

from __future__ import annotations

import gc
import resource
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

import torch
from torch import Tensor

from bench.execution import arms
from bench.host import linux
from bench.measure import clocks, integrity, process_state
from bench.measure.failed_check import fail_check
from bench.measure.gpu_call import GpuTimer, check_streams
from bench.measure.other_work import OtherThreads
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.replaced_functions import Functions
from bench.models.base import Family
from methods.base import Method

Forward = Callable[[], Tensor]
"""A call of the model that gives logits."""

REPLAY_SEED = 1
KEPT_BYTES = 32 << 20
FAULT_NS = 500
"""What a page takes that the kernel gives anew, filled with zeros."""
FAULTS_FRAC = 0.01
"""Of a call: what such pages may take. Where freed memory is kept, vanilla needs next to none."""


class ProcessGuard:
    """This process before its method was built: its threads, its global state and the functions
    that it runs on. `claim` tells the supervisor what a sample of an arm took."""

    def __init__(
        self, device: str = "cpu", claim: Callable[[int, int], None] = lambda arm, took_ns: None
    ) -> None:
        self.threads = OtherThreads(device)
        self.functions = Functions()
        self.state = process_state.snapshot()
        self.claim = claim
        self.keeps_memory = _keeps_memory()
        self.gpu_timer = GpuTimer() if device == "cuda" else None


@dataclass
class Arm:
    """One timed call of the model with `method` in it: by the monotonic clock on the CPU, by events
    on a GPU (bench.measure.gpu_call). Called with the number of an input, it returns nanoseconds.

    guard    this process before the method was built
    active   nanoseconds that each call at least ran or slept outside the timed region, instead of
             waiting for a processor
    between  nanoseconds of what the harness needs between timed calls
    hidden   nanoseconds of each call by the kernel's clock, on a GPU by the host's, less those by
             the clock that times it
    left     on a GPU, nanoseconds from the end of each call until all streams were idle
    other    nanoseconds that threads which aren't torch's computed in each call, and its own
    faults   page faults of each call
    wall     on a GPU, nanoseconds of each call by the host's clock, kernel launches included
    replay   once `keep_next` was called: what repeats a timed call, and the logits that it gave
    """

    family: Family
    method: Method
    inputs: PerturbedInputs
    device: str
    guard: ProcessGuard = field(default_factory=ProcessGuard)
    active: list[int] = field(default_factory=list)
    between: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    other: list[tuple[int, int]] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)
    last: Tensor | None = None
    replay: tuple[Forward, Tensor] | None = None
    keeps: bool = False

    def __call__(self, i: int) -> int:
        waited, entered, between = linux.waited_ns(), perf_counter_ns(), len(self.between)
        self.family.method = self.method
        forward = self.prepared(i)
        timed = self._on_cuda if self.device == "cuda" else self._on_cpu
        if self.keeps:
            torch.manual_seed(REPLAY_SEED)
        attended, others = self.family.calls, self.guard.threads.cpu_ns()
        collects, faults = gc.isenabled(), page_faults()
        took, logits = timed(forward)
        self.faults.append(page_faults() - faults)
        self.other.append((self.guard.threads.computed_ns(others), took))
        process_state.check(self.guard.state, collects)
        integrity.check_plain_tensor(logits)
        if self.last is not None and torch.equal(logits, self.last):
            fail_check("returns a cached output: another input gave the same")
        self.check_attended(attended)
        if self.keeps:
            self.replay, self.keeps = (self.repeated(i), logits), False
        self.last = logits
        del logits
        self.add_active(entered, waited, took + sum(self.between[between:]))
        return took

    def check_attended(self, before: int) -> None:
        """Raises IntegrityError when the timed call, before which the method had attended so often,
        didn't run it."""
        integrity.check_attention_ran(self.family, before)

    def add_active(self, entered: int, waited: int, known_ns: int) -> None:
        """Record how long a call was active beside `known_ns`: `entered` is the clock at its start,
        `waited` is `linux.waited_ns` before that. It is a lower bound, as all waits of the call are
        subtracted: no reading tells one just before the timed region from one in it."""
        untimed = perf_counter_ns() - entered - known_ns
        waits = linux.waited_ns() - waited
        self.active.append(max(0, untimed - waits))
        # What a clock seems to hide, or a stream to leave, may be such a wait, too.
        for recorded in (self.hidden, self.left):
            if recorded:
                recorded[-1] -= waits

    def of(self, method: Method) -> Arm:
        """An arm of another method at the same inputs."""
        return Arm(self.family, method, self.inputs, self.device, self.guard)

    def prepared(self, i: int) -> Forward:
        """What call i times."""
        return partial(arms.first_token, self.family, *self.inputs.perturbed(i))

    def repeated(self, i: int) -> Forward:
        """What repeats call i, the last one."""
        ids, sequence = self.inputs.current(i)
        return partial(arms.first_token, self.family, ids.clone(), sequence)

    def catch_up(self, calls: int) -> None:
        """Does untimed what keeps it beside another arm that makes so many calls: nothing, where
        no call depends on those before."""

    def keep_next(self) -> None:
        """Have the next call keep what repeats it and its logits, for `check_replay`."""
        self.keeps = True

    def check_replay(self) -> None:
        """Raises IntegrityError when the kept input of a timed call now gives other logits."""
        if self.replay is not None:
            forward, expected = self.replay
            self.family.method = self.method
            torch.manual_seed(REPLAY_SEED)
            integrity.check_same(forward(), expected, "when it was timed")

    def check_memory_kept(self) -> None:
        """Raises IntegrityError when the calls need pages anew, though this process keeps what it
        frees: another method gave them back."""
        # A tenth of the calls may find the heap too small, by chance or as it grows.
        counted = len(self.faults) - len(self.faults) // 10
        pages = statistics.mean(sorted(self.faults)[:counted])
        call_ns = statistics.median(took for _, took in self.other)
        if self.guard.keeps_memory and pages * FAULT_NS > FAULTS_FRAC * call_ns:
            fail_check(
                f"gives memory back that vanilla needs: {pages:,.0f} pages in each of its calls"
            )

    def check_clocks(self, call_ns: int) -> None:
        """Raises IntegrityError when calls of about `call_ns` take longer than they seem to."""
        clocks.check_calls(self.hidden, call_ns)
        check_streams(self.left, call_ns)

    def sample(self, i: int, calls: int) -> int:
        """Sample i: the mean nanoseconds of `calls` calls."""
        started = perf_counter_ns()
        timed_ns = sum(self(i * calls + j) for j in range(calls))
        self.guard.claim(id(self), perf_counter_ns() - started)
        return timed_ns // calls

    def reset(self) -> None:
        """Forget what was recorded of the calls so far."""
        for name in ("active", "between", "hidden", "left", "other", "faults", "wall"):
            getattr(self, name).clear()

    def walls(self, calls: int) -> list[int] | None:
        """The wall times, grouped like the samples; None where the clock is the host's."""
        starts = range(0, len(self.wall), calls)
        return [sum(self.wall[i : i + calls]) // calls for i in starts] or None

    def _on_cpu(self, forward: Forward) -> tuple[int, Tensor]:
        before = clocks.kernel_ns()
        started = perf_counter_ns()
        logits = forward()
        took = perf_counter_ns() - started
        self.hidden.append(clocks.kernel_ns() - before - took)
        return took, logits

    def _on_cuda(self, forward: Forward) -> tuple[int, Tensor]:
        assert self.guard.gpu_timer is not None
        timed = self.guard.gpu_timer(forward)
        self.wall.append(timed.wall)
        self.hidden.append(timed.hidden)
        self.left.append(timed.left)
        self.between.append(timed.flush)
        return timed.took, timed.logits


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _keeps_memory() -> bool:
    """Whether an allocation gets the pages of one that was freed."""
    before = 0
    for _ in range(2):
        before = page_faults()
        torch.ones(KEPT_BYTES // 4)
    return page_faults() - before < 100
