"""Times the method against vanilla in one process: same weights, same inputs, pairs in an order
drawn by a seeded coin flip, every fourth pair vanilla against vanilla.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from bench.measure import integrity
from bench.measure.pair_shares import PairShare
from bench.measure.integrity import raise_recorded
from bench.measure.timed_call import Answer, Arm, Sample, check_streams

AA_EVERY = 4


@contextlib.contextmanager
def timing_loop(in_process: bool = True) -> Iterator[None]:
    """Without garbage collection. Raises IntegrityError for threads and processes that a method in
    this process leaves behind."""
    with garbage_collection_off():
        yield
    if in_process:
        integrity.check_python_threads()
        integrity.check_processes()
        raise_recorded()


@contextlib.contextmanager
def garbage_collection_off() -> Iterator[Callable[[], int]]:
    """Without garbage collection; yields a function for the nanoseconds since the start."""
    gc.collect()
    gc.freeze()
    gc.disable()
    started = perf_counter_ns()
    try:
        yield lambda: perf_counter_ns() - started
    finally:
        gc.enable()
        gc.unfreeze()


Pairs = list[tuple[Sample, Sample]]


@dataclass
class PairSamples:
    """The samples of method and base, those of the base paired with itself, and a letter for each
    pair: the arm that went first, or A for equal arms. `rel_l2` and `top1` compare the answers of
    each pair of calls: relative error, and share of equal first choices."""

    pairs: Pairs = field(default_factory=list)
    aa: Pairs = field(default_factory=list)
    order: str = ""
    rel_l2: list[float] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)

    @property
    def without_waits(self) -> bool:
        """Whether paired ratios vary less without waits for a processor. Always false with several
        threads, since only the waits of the main thread are known."""
        if torch.get_num_threads() > 1 or not any(a.waited_ns + b.waited_ns for a, b in self.pairs):
            return False
        with_waits = [math.log(max(1, a.wall_ns) / max(1, b.wall_ns)) for a, b in self.pairs]
        without = [math.log(a.less_waits_ns / b.less_waits_ns) for a, b in self.pairs]
        return _spread(without) < _spread(with_waits)

    def fields(self) -> dict[str, Any]:
        """Both sides of each pair, as fields of a comparison."""
        method_ns, base_ns = self.sides(self.pairs)
        return {"samples_ns": method_ns, "base_samples_ns": base_ns, "pair_order": self.order}

    def fields_to_vanilla(self) -> dict[str, Any]:
        """As `fields`, for a comparison with vanilla, which also has pairs of equal arms."""
        first, second = self.sides(self.aa)
        return {
            **self.fields(),
            "aa_first_samples_ns": first,
            "aa_second_samples_ns": second,
            "waits_left_out": self.without_waits or None,
        }

    def sides(self, pairs: Pairs) -> tuple[list[int], list[int]]:
        """The nanoseconds of either side of the pairs."""
        time = "less_waits_ns" if self.without_waits else "wall_ns"
        first, second = ([getattr(pair[side], time) for pair in pairs] for side in (0, 1))
        return first, second


def _spread(logs: Sequence[float]) -> float:
    centre = statistics.median(logs)
    return statistics.median(abs(x - centre) for x in logs)


def sample_pairs(
    method: Arm,
    base: Arm,
    share: PairShare,
    coin: random.Random,
    progress: Callable[[int], None],
    aa_every: float = math.inf,
) -> PairSamples:
    """The share's pairs, in an order decided by `coin`, both arms on the same new input; every
    `aa_every`-th pair times the base against itself. Raises IntegrityError."""
    calls = share.calls
    first_pair = share.done + max(0, share.done - 1) // (AA_EVERY - 1)
    samples = PairSamples()
    method.reset()
    base.reset()
    with timing_loop(method.in_process):
        while len(samples.pairs) < share.pairs:
            i = first_pair + len(samples.order)
            progress(len(samples.pairs))
            if i % aa_every == aa_every - 1:
                samples.aa.append((base.sample(i, calls), base.sample(i, calls)))
                method.catch_up(2 * calls)
                samples.order += "A"
                base.given.clear()
                continue
            method_first = coin.random() < 0.5
            samples.order += "M" if method_first else "V"
            drawn = method.draw(i * calls, calls)
            turn = (method, base) if method_first else (base, method)
            taken = {arm: arm.sample(i, calls, drawn) for arm in turn}
            samples.pairs.append((taken[method], taken[base]))
            for given, exact in zip(method.given, base.given, strict=True):
                error, agree = compared(given, exact)
                samples.rel_l2.append(error)
                samples.top1.append(agree)
            method.given.clear()
            base.given.clear()
    check_streams(method.left, statistics.median(one.wall_ns for one, _ in samples.pairs))
    return samples


def compared(given: Answer, exact: Answer) -> tuple[float, float]:
    """The relative error of an answer, and the share of equal first choices; 1 and 0 where the
    answers have different sizes."""
    if given.logits.shape != exact.logits.shape:
        return 1.0, 0.0
    norm = float(exact.logits.norm()) or 1.0
    agree = (given.first == exact.first).float().mean()
    return float((given.logits - exact.logits).norm()) / norm, float(agree)


def sample_alone(method: Arm, count: int, calls: int, progress: Callable[[int], None]) -> list[int]:
    """Nanoseconds of a call in each of `count` samples of `calls` calls. Raises IntegrityError."""
    samples = []
    method.reset()
    with timing_loop(method.in_process):
        for i in range(count):
            progress(i)
            samples.append(method.sample(i, calls).wall_ns)
            method.given.clear()
    check_streams(method.left, statistics.median(samples))
    return samples
