"""Calls that the supervisor times by its own clock, from its request to the answer.

The method's process answers some calls after its pairs. A process with vanilla, which never imports
the method, does too and draws the inputs: no process sees an input before its answer is requested.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
from safetensors.torch import load, save

from bench.execution import arms, worker
from bench.measure import integrity
from bench.measure.paired_timing import PairShare
from bench.measure.perturbed_inputs import Input
from bench.measure.timed_call import Arm

SAMPLE_NS = 10_000_000
"""Shorter calls are grouped into samples of this length, well above the time of a message."""
SAMPLES, PAIRS_PER_SAMPLE = 4, 3
"""Samples of each arm in each process, at most one for every three pairs. One more before them
warms the caches and is dropped."""
LONG_NS, LONG_SAMPLES = 1_000_000_000, 1
"""Number of samples for calls of at least this length; none of them is dropped."""
ALONE_SAMPLES = 12
"""Samples of short calls if one process times all pairs, at most one for every pair: there are no
other processes to average out disturbances."""
WARM_CALLS = 1
"""Warm-up calls of vanilla in its separate process, before the supervisor requests samples."""


def cost_ns(method_ns: int, base_ns: int) -> int:
    """Nanoseconds that the samples of one round take, given those of one call of each arm."""
    return (1 + _samples(base_ns)) * (method_ns + base_ns) + WARM_CALLS * base_ns


def _samples(call_ns: int) -> int:
    return SAMPLES if call_ns < LONG_NS else LONG_SAMPLES


def time_here(
    report: worker.Report,
    method: Arm,
    share: PairShare,
    timed: Mapping[str, Any],
    scored: Input | None = None,
) -> None:
    """Have the supervisor time this process's method, whose pairs are `timed`. For long calls, and
    on a GPU, where vanilla's process has to load the model itself, only in the first process."""
    fastest = min(*timed["samples_ns"], *timed["base_samples_ns"])
    if share.process and (method.device == "cuda" or fastest >= LONG_NS):
        return
    pairs = len(timed["samples_ns"])
    samples = max(1, min(_samples(fastest), pairs // PAIRS_PER_SAMPLE))
    if share.pairs + share.twin_pairs == share.total and fastest < LONG_NS:
        samples = max(1, min(ALONE_SAMPLES, pairs, method.most_calls - 1))
    calls = min(math.ceil(SAMPLE_NS / max(1, fastest)), method.most_calls // (samples + 1))
    if calls:
        dropped = int(fastest < LONG_NS)
        report.send("outside", calls=calls, samples=samples, dropped=dropped, process=share.process)
        serve(report.link, method, scored)


def serve(link: int, arm: Arm, scored: Input | None = None) -> None:
    """Answer the supervisor's requests until it sends `stop`. A request is a word of four letters
    and its content. `scored` is a batch that the quality stage has answered."""
    arm.reset()
    with Connection(os.dup(link)) as connection:
        while True:
            try:
                message = connection.recv_bytes()
            except EOFError:
                return
            request, content = message[:4], message[4:]
            reply = b""  # measures the time of a message
            if request == b"stop":
                return
            if request == b"draw":
                reply = save(arm.drawn(int(content)))
            elif request == b"read":
                arm.read(load(content))
            elif request == b"call":
                reply = save(arm.answered(load(content)))
            elif request == b"text" and scored is not None:
                arm.family.method = arm.method
                logits = arms.first_token(arm.family, *scored)
                reply = save({"answer": torch.tensor(integrity.projected(logits))})
            connection.send_bytes(reply)
