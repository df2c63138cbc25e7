"""One timed call of a model with a method in it, and what is checked around each call."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from time import perf_counter_ns

import torch
from torch import Tensor

from bench.execution import arms
from bench.measure import clocks, integrity, process_state
from bench.measure.failed_check import fail_check
from bench.measure.other_work import OtherThreads
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.base import Family
from methods.base import Method, SequenceInfo

REPLAY_SEED = 1


class ProcessGuard:
    """This process before its method was built: its threads and its global state."""

    def __init__(self, device: str = "cpu") -> None:
        self.threads = OtherThreads(device)
        self.state = process_state.snapshot()


@dataclass
class Arm:
    """One timed call of the model with `method` in it: monotonic clock on the CPU, events and one
    synchronisation on a GPU. Called with the number of an input, it returns nanoseconds.

    guard    this process before the method was built
    untimed  nanoseconds of each call outside the timed region
    hidden   on the CPU, nanoseconds of each call by the kernel's clock less those by the timing one
    other    nanoseconds that threads which aren't torch's computed in each call, and its own
    faults   page faults of each call
    wall     on a GPU, nanoseconds of each call by the host's clock, kernel launches included
    replay   once `keep_next` was called: an input of a timed call, and the logits that it gave
    """

    family: Family
    method: Method
    inputs: PerturbedInputs
    device: str
    guard: ProcessGuard = field(default_factory=ProcessGuard)
    untimed: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    other: list[tuple[int, int]] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)
    last: Tensor | None = None
    replay: tuple[Tensor, SequenceInfo, Tensor] | None = None
    keeps: bool = False

    def __call__(self, i: int) -> int:
        entered = perf_counter_ns()
        self.family.method = self.method
        ids, sequence = self.inputs.perturbed(i)
        forward = self._on_cuda if self.device == "cuda" else self._on_cpu
        if self.keeps:
            torch.manual_seed(REPLAY_SEED)
        attended, others = self.family.calls, self.guard.threads.cpu_ns()
        faults = page_faults()
        took, logits = forward(ids, sequence)
        self.faults.append(page_faults() - faults)
        self.other.append((self.guard.threads.computed_ns(others), took))
        process_state.check(self.guard.state)
        integrity.check_plain_tensor(logits)
        if self.last is not None and torch.equal(logits, self.last):
            fail_check("returns a cached output: another input gave the same")
        integrity.check_attention_ran(self.family, attended)
        if self.keeps:
            self.replay, self.keeps = (ids.clone(), sequence, logits), False
        self.last = logits
        del logits
        self.untimed.append(perf_counter_ns() - entered - took)
        return took

    def keep_next(self) -> None:
        """Have the next call keep its input and its logits, for `check_replay`."""
        self.keeps = True

    def check_replay(self) -> None:
        """Raises IntegrityError when the kept input of a timed call now gives other logits."""
        if self.replay is not None:
            ids, sequence, expected = self.replay
            self.family.method = self.method
            torch.manual_seed(REPLAY_SEED)
            logits = arms.first_token(self.family, ids, sequence)
            integrity.check_same(logits, expected, "when it was timed")

    def sample(self, i: int, calls: int) -> int:
        """Sample i: the mean nanoseconds of `calls` calls."""
        return sum(self(i * calls + j) for j in range(calls)) // calls

    def reset(self) -> None:
        """Forget what was recorded of the calls so far."""
        for recorded in (self.untimed, self.hidden, self.other, self.faults, self.wall):
            recorded.clear()

    def walls(self, calls: int) -> list[int] | None:
        """The wall times, grouped like the samples; None where the clock is the host's."""
        starts = range(0, len(self.wall), calls)
        return [sum(self.wall[i : i + calls]) // calls for i in starts] or None

    def _on_cpu(self, ids: Tensor, sequence: SequenceInfo) -> tuple[int, Tensor]:
        before = clocks.kernel_ns()
        started = perf_counter_ns()
        logits = arms.first_token(self.family, ids, sequence)
        took = perf_counter_ns() - started
        self.hidden.append(clocks.kernel_ns() - before - took)
        return took, logits

    def _on_cuda(self, ids: Tensor, sequence: SequenceInfo) -> tuple[int, Tensor]:
        start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        started = perf_counter_ns()
        start.record()
        logits = arms.first_token(self.family, ids, sequence)
        end.record()
        torch.cuda.synchronize()
        self.wall.append(perf_counter_ns() - started)
        return int(start.elapsed_time(end) * 1e6), logits


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
