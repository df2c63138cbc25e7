"""Where the method's time goes, and what it takes when nothing else runs beside it."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from bench.children import arms, gate, machine
from bench.children.wrapped import Wrapped
from bench.models.base import Family
from methods.base import Call

DECODED_TOKENS = 16
TIMES = 3
ALONE_CALLS = 10
ENOUGH_NS = 3_000_000_000


@contextlib.contextmanager
def still() -> Iterator[Callable[[], int]]:
    """No garbage collection while something is timed; yields the nanoseconds since it began."""
    gc.collect()
    gc.freeze()
    gc.disable()
    began = perf_counter_ns()
    try:
        yield lambda: perf_counter_ns() - began
    finally:
        gc.enable()
        gc.unfreeze()


def stages(family: Family, batch: gate.Input) -> dict[str, Any]:
    """Where the method's time goes: inside its attention, in its walk over the layers, until the
    first token, and for each token after it (None where noise hides that)."""
    ids, sequence = batch
    now = machine.clock(ids.device.type)
    attend: list[int] = []
    method = family.method

    def encode() -> None:
        family.method = watch = Stopwatch(method, now)
        family.encode(ids, sequence)
        attend.append(sum(watch.inside))
        family.method = method

    with still():
        encode_ns, _ = median(encode, now)
        prefill_ns, _ = median(lambda: arms.first_token(family, ids, sequence), now)
        answer_ns, answer = median(lambda: family.generate_ids(ids, sequence, DECODED_TOKENS), now)
    tokens = answer.shape[1] - 1
    after_first = answer_ns - prefill_ns
    return {
        "attend_ns": int(statistics.median(attend)),
        "encode_ns": encode_ns,
        "prefill_ns": prefill_ns,
        "decode_ns_per_token": after_first // (tokens - 1)
        if min(after_first, tokens - 1) > 0
        else None,
        "tokens_out": tokens,
    }


def median(call: Callable[[], Any], now: Callable[[], int]) -> tuple[int, Any]:
    """The median nanoseconds of three calls, of fewer when they are long, and what was returned."""
    took: list[int] = []
    first = now()
    while len(took) < TIMES and (not took or now() - first < ENOUGH_NS):
        began = now()
        returned = call()
        took.append(now() - began)
    return int(statistics.median(took)), returned


@dataclass(frozen=True)
class Stopwatch(Wrapped):
    """A method that notes the nanoseconds spent inside its own attention."""

    now: Callable[[], int] = perf_counter_ns
    inside: list[int] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        began = self.now()
        out = super().attend(query, key, value, call)
        self.inside.append(self.now() - began)
        return out


def alone(arm: Callable[[int], int], device: str) -> dict[str, Any]:
    """The arm's median with no other arm between its calls, which finds its caches as it left
    them, and the joules of one call where the machine has a meter."""
    meter, reason = machine.energy_meter(device)
    calls: list[int] = []
    with still() as spent:
        before = meter() if meter else 0.0
        while len(calls) < TIMES or (len(calls) < ALONE_CALLS and spent() < ENOUGH_NS):
            calls.append(arm(len(calls)))
        joules = meter() - before if meter else 0.0
    return {
        "solo_median_ns": int(statistics.median(calls)),
        "energy_j": joules / len(calls) if meter else None,
        "energy_source": ("nvml" if device == "cuda" else "rapl") if meter else None,
        "energy_reason": reason,
    }
