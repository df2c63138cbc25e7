"""Facts that NVML reports about the GPU of this process; None if unknown. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

POWER_CAP, NOT_THROTTLED = "power cap", "none"
THROTTLES = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "temperature (driver)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's reasons for lower clocks. The bits that are left out mean a choice of the user, or
an idle GPU."""


class GpuState(NamedTuple):
    """Clocks in MHz, `reasons` as NVML's bits, and the time for which temperature or power have
    reduced the clocks since the driver was loaded."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    reasons: int | None = None
    throttled_ns: int | None = None


def state() -> GpuState:
    """The GPU now."""
    with _nvml() as found:
        if found is None:
            return GpuState()
        nvml, card = found
        clock = nvml.nvmlDeviceGetClockInfo
        policies = (nvml.NVML_PERF_POLICY_POWER, nvml.NVML_PERF_POLICY_THERMAL)
        violated = [_read(nvml, nvml.nvmlDeviceGetViolationStatus, card, each) for each in policies]
        known = [int(each.violationTime) for each in violated if each]
        return GpuState(
            _read(nvml, clock, card, nvml.NVML_CLOCK_SM),
            _read(nvml, clock, card, nvml.NVML_CLOCK_MEM),
            _read(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card),
            sum(known) if known else None,
        )


def clock_columns(before: GpuState, after: GpuState) -> dict[str, Any]:
    """The columns of clocks and throttling, from states before and right after a measurement."""
    masks = [one.reasons for one in (before, after) if one.reasons is not None]
    reasons = [name for bit, name in THROTTLES.items() if any(mask & bit for mask in masks)]
    throttled = None
    if before.throttled_ns is not None and after.throttled_ns is not None:
        throttled = after.throttled_ns - before.throttled_ns
    return {
        "gpu_clock_mhz": after.sm_mhz,
        "gpu_memory_clock_mhz": after.memory_mhz,
        "gpu_throttle_reasons": (", ".join(reasons) or NOT_THROTTLED) if masks else None,
        "gpu_throttled_ns": throttled,
    }


def noise(columns: Mapping[str, Any]) -> str | None:
    """Why times of a row with these columns are noisy: the GPU was throttled for another reason
    than its power cap, at which a fully used GPU runs."""
    reasons = (columns.get("gpu_throttle_reasons") or NOT_THROTTLED).split(", ")
    bad = [reason for reason in reasons if reason not in (NOT_THROTTLED, POWER_CAP)]
    return f"the GPU was throttled: {', '.join(bad)}" if bad else None


def throttled(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of throttling of all processes of a cell; none if the first process has none."""
    if not parts[0].get("gpu_throttle_reasons"):
        return {}
    named = {name for part in parts for name in (part["gpu_throttle_reasons"] or "").split(", ")}
    spans = [part["gpu_throttled_ns"] for part in parts]
    reasons = ", ".join(name for name in THROTTLES.values() if name in named)
    return {
        "gpu_throttle_reasons": reasons or NOT_THROTTLED,
        "gpu_throttled_ns": None if None in spans else sum(spans),
    }


def used_bytes() -> int | None:
    """Memory of the whole GPU that is in use, by all processes."""
    info = _asked("nvmlDeviceGetMemoryInfo")
    return int(info.used) if info else None


def process_bytes(pid: int) -> int | None:
    """GPU memory of a process; None in a container with separate process ids."""
    running = _asked("nvmlDeviceGetComputeRunningProcesses") or []
    return next((process.usedGpuMemory for process in running if process.pid == pid), None)


def name() -> str | None:
    """Name of the first GPU that is visible to this process."""
    found: str | None = _asked("nvmlDeviceGetName")
    return found


def driver() -> str | None:
    """Version of the driver."""
    with _nvml() as found:
        return _read(found[0], found[0].nvmlSystemGetDriverVersion) if found else None


def memory_bytes() -> int | None:
    """Memory of the whole GPU."""
    info = _asked("nvmlDeviceGetMemoryInfo")
    return int(info.total) if info else None


def _asked(function: str) -> Any:
    """The answer of one of NVML's functions on the first visible GPU."""
    with _nvml() as found:
        return _read(found[0], getattr(found[0], function), found[1]) if found else None


@contextlib.contextmanager
def _nvml() -> Iterator[tuple[Any, Any] | None]:
    """The module pynvml and the handle of the first visible GPU; None if either is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
        found = pynvml, handle(pynvml)
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield found
    finally:
        pynvml.nvmlShutdown()


def handle(nvml: Any) -> Any:
    """NVML's handle of the first visible GPU, which is not its first where CUDA_VISIBLE_DEVICES
    names another."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    return nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)


def _read(nvml: Any, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None
