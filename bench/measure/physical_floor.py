"""The least time that a call can take: its matrix products at this machine's measured peak."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from bench.host import torch_host
from bench.measure.failed_check import fail_check

PEAK_MARGIN = 3.0
"""The peak is measured on one size of matrices and in moments that may be noisy: a call must be
faster than three times that before it is impossible."""


class DenseWork:
    """Floating-point operations in the model's own linear layers. Attention isn't counted, nor
    what a method computes by itself: a method may skip nearly all of the former."""

    flops = 0

    def add(self, module: nn.Module, given: tuple[Any, ...], _out: Any) -> None:
        if isinstance(module, nn.Linear) and given:
            self.flops += 2 * given[0].numel() * module.out_features


@contextmanager
def counted() -> Iterator[DenseWork]:
    """Counts what every model of this process does inside."""
    work = DenseWork()
    hook = register_module_forward_hook(work.add)
    try:
        yield work
    finally:
        hook.remove()


def peak_gflops(dtype: str, measured: float) -> float:
    """The CPU's peak: what was measured, or a second measurement, as the first one may have been a
    busy moment. In half precision also that of float32, in which a CPU without such products
    computes them: there one of large matrices may be much slower than a layer's."""
    again = (torch_host.gemm_gflops(each, "cpu") for each in {dtype, "float32"})
    return max(measured, *again)


def check(samples_ns: Sequence[int], flops: int, gemm_gflops: float) -> None:
    """Raises IntegrityError when the median call is too short for `flops` floating-point
    operations, which an untimed call of the same shape did."""
    floor_ns = flops / (PEAK_MARGIN * gemm_gflops)
    call_ns = statistics.median(samples_ns)
    if call_ns < floor_ns:
        fail_check(
            f"is faster than this machine: a call takes {call_ns / 1e6:.3f} ms, its linear layers "
            f"alone need {floor_ns / 1e6:.3f} ms at {PEAK_MARGIN:g} times the measured "
            f"{gemm_gflops:.0f} GFLOP/s"
        )
