"""The arm of the comparisons with exact attention by the engine that runs the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.execution import worker
from bench.measure import paired_timing
from bench.measure.pair_shares import PairShare
from bench.measure.paired_timing import WARM_CALLS
from bench.measure.timed_call import Arm
from bench.request.cell import Cell
from bench.rows.columns import FUSED_KERNEL
from methods.base import Method


def kernel_of(method: Method) -> str:
    """Which kernels ran the method's calls so far."""
    return getattr(method, "kernel_used", FUSED_KERNEL)


def twin_arm(method: Arm, most_calls: int = WARM_CALLS) -> tuple[Arm | None, dict[str, Any]]:
    """The exact twin of a method that has been called before, warmed up, and its kernel as a field
    of the comparison. None where that is vanilla itself, or where exact attention can't run on that
    engine, with the reason."""
    twin = method.method.exact_twin()
    if twin is None:
        return None, {"kernel": FUSED_KERNEL}
    arm = method.of(twin)
    paired_timing.warm_up(arm, most_calls)
    if twin.exact_twin() is None:
        used, own = kernel_of(twin), kernel_of(method.method)
        reason = f"the method ran on {own}, exact attention on {used}"
        return None, {"reason": reason}
    return arm, {"kernel": kernel_of(twin)}


def time_pairs(
    method: Arm,
    base: Arm,
    twin: Arm | None,
    cell: Cell,
    report: worker.Report,
    share: PairShare,
    stage: str = "latency",
) -> dict[str, Any]:
    """`timed`: the share's pairs with vanilla, `engine`: after them those with the exact twin, as
    fields of comparisons; and columns of the row. Raises IntegrityError."""
    result = paired_timing.time_pairs(method, base, cell, report, share, stage)
    if twin is None:
        return result
    coin = paired_timing.pair_coin("same engine", cell, share)
    progress = paired_timing.pair_progress(report, share, share.pairs, stage)
    of_twin = replace(share, pairs=share.twin_pairs)
    samples = paired_timing.sample_pairs(method, twin, of_twin, coin, progress)
    return result | {"engine": samples.fields()}
