"""Facts about a machine that need torch. Those that it lacks are None, with a reason."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.host import gpu, linux

POWERCAP = Path("/sys/class/powercap")
SIDE = 1024
PRODUCTS = 5
LONGEST_NS = 1_000_000_000
Meter = Callable[[], float]


def measure(request: dict[str, Any], report: object) -> dict[str, Any]:
    return facts("float32", "cpu")


def facts(dtype: str, device: str) -> dict[str, Any]:
    """`affinity`, `blas`, `onednn` and `gemm_gflops`."""
    built = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    onednn = re.search(r"oneDNN\) v([\w.]+)", built) or re.search(r"MKL-DNN v([\w.]+)", built)
    return {
        "gemm_gflops": gemm_gflops(dtype, device),  # first: it starts torch's threads
        "affinity": ",".join(map(str, linux.thread_cpus())),
        "blas": blas[1] if blas else None,
        "onednn": onednn[1] if onednn else None,
    }


def gemm_gflops(dtype: str, device: str) -> float:
    """The best of a few products of two 1,024 × 1,024 matrices, on torch's threads, without this
    thread's waits for a processor; of one or two products if they take seconds, as in bfloat16 on a
    CPU that doesn't support it."""
    a, b = (torch.randn(SIDE, SIDE, device=device).to(getattr(torch, dtype)) for _ in range(2))
    now = clock(device)
    times_ns: list[int] = []
    while len(times_ns) < PRODUCTS and sum(times_ns) < LONGEST_NS:
        began, waited_ns = now(), linux.waited_ns()
        torch.mm(a, b)
        took_ns = now() - began
        times_ns.append(max(1, took_ns - (linux.waited_ns() - waited_ns)))
    return 2 * SIDE**3 / min(times_ns)


def clock(device: str) -> Callable[[], int]:
    """A monotonic clock in nanoseconds that waits until the device is idle."""
    if device != "cuda":
        return time.perf_counter_ns

    def synchronized_ns() -> int:
        torch.cuda.synchronize()
        return time.perf_counter_ns()

    return synchronized_ns


def energy_meter(device: str) -> tuple[Meter | None, str | None]:
    """A meter of joules used by the whole device so far, or None and the reason."""
    if device != "cuda":
        return _rapl()
    import pynvml

    try:
        pynvml.nvmlInit()
        card = gpu.handle(pynvml)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(card)
    except pynvml.NVMLError as error:
        return None, f"the driver has no energy counter: {error}"
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3, None


def _rapl() -> tuple[Meter | None, str | None]:
    zones = POWERCAP.glob("intel-rapl:[0-9]*")
    # A second colon is in the name of a part of a processor package.
    packages = [zone / "energy_uj" for zone in zones if zone.name.count(":") == 1]
    if not packages:
        return None, "the kernel offers no RAPL counter here"
    total = len(packages) * [0]
    last = len(packages) * [0]

    def read() -> float:
        for i, file in enumerate(packages):
            now = int(file.read_text())
            wrapped = int((file.parent / "max_energy_range_uj").read_text()) if now < last[i] else 0
            total[i] += now - last[i] + wrapped
            last[i] = now
        return sum(total) / 1e6

    try:
        read()
    except OSError as error:
        return None, f"RAPL can't be read: {error.strerror}"
    return read, None
