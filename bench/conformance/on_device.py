"""The checks of `bench.conformance` on a GPU, in each dtype: the same tiny models, moved there, and
compared with the outputs of the processor in float32.

Not checked there: training, and the bytes that caches report as held and read, whose code is the
same on every device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.conformance import cache_checks, checks, run
from bench.conformance.subject import LONG, MIXED, Subject
from bench.models.base import Family
from methods.base import Method, refusal

DTYPES = ("float32", "bfloat16", "float16")
SINGLE = (
    checks.stateless, checks.called, checks.any_length, checks.long_input, checks.mixing,
    checks.no_future, checks.padding, checks.mixed_lengths, checks.exact_limit, checks.seeded,
    checks.dirty_memory, checks.answering, cache_checks.decoding, cache_checks.decoding_padded,
)  # fmt: skip
HALF = (checks.stateless, checks.called, checks.any_length, checks.seeded, checks.answering)
"""In half precision a choice of tokens may depend on the last bit, so that other rows or padding
change the tokens that a method reads: the checks that need equal choices run only in float32."""
LIKE_CPU = 1e-3
"""Relative L2 error of float32 outputs between devices: sums in another order, no TF32."""


def check_on_device(method: Method, family: Family, device: str, dtype: str) -> list[str]:
    """One line for each property that `method` lacks in `family` (a `Family.tiny`, on the CPU in
    float32) on this device in this dtype; none where it does not support the family."""
    if refusal(method, family.workload(LONG, len(MIXED))):
        return []
    kind = getattr(torch, dtype)
    family.model.eval()

    def like_cpu(subject: Subject) -> Iterator[str]:
        """Outputs equal those of the processor in float32, as far as this dtype allows."""
        on_cpu = Subject(subject.method, family)
        yield from checks.recast_like(on_cpu, kind, device)
        if dtype == "float32":
            yield from _close(on_cpu, subject)

    there = Subject(method, family).recast(kind, device).family
    chosen = SINGLE if dtype == "float32" else HALF
    return run((*chosen, like_cpu), method, there)


def _close(expected: Subject, given: Subject) -> Iterator[str]:
    first, second = (one.encode(*one.batch(MIXED)) for one in (expected, given))
    valid = expected.batch(MIXED)[1].valid
    first, second = first[valid].double(), second.cpu()[valid].double()
    far = float((second - first).norm() / first.norm())
    if not far < LIKE_CPU:
        yield f"is {far:.1e} from the processor's output; {LIKE_CPU:g} is allowed"
