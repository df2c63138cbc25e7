"""Global state of this process that speeds up or slows down whatever runs next: a method must leave
it as it was."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from bench.measure.failed_check import fail_check

sdpa: Any = torch.backends.cuda
_DENORMAL = 5e-324


def _affinity() -> set[int]:
    return os.sched_getaffinity(0)


def _flushes_denormals() -> bool:
    return _DENORMAL * 1.0 == 0.0


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's threads": (torch.get_num_threads, torch.set_num_threads),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (torch.get_default_device, torch.set_default_device),
    "deterministic algorithms": (
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode,
    ),
    "the precision of matrix products": (
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
    ),
    "flushing of denormals": (_flushes_denormals, torch.set_flush_denormal),
    "oneDNN": _attribute(torch.backends.mkldnn, "enabled"),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "flash attention": (sdpa.flash_sdp_enabled, sdpa.enable_flash_sdp),
    "memory-efficient attention": (sdpa.mem_efficient_sdp_enabled, sdpa.enable_mem_efficient_sdp),
    "unfused attention": (sdpa.math_sdp_enabled, sdpa.enable_math_sdp),
    "cuDNN's attention": (sdpa.cudnn_sdp_enabled, sdpa.enable_cudnn_sdp),
    "the processor affinity": (_affinity, lambda cpus: os.sched_setaffinity(0, cpus)),
    "the trace hook": (sys.gettrace, sys.settrace),
    "the profile hook": (sys.getprofile, sys.setprofile),
    "torch's attention function": _attribute(functional, "scaled_dot_product_attention"),
    "torch's linear function": _attribute(functional, "linear"),
    "torch's modules": _attribute(torch.nn.Module, "__call__"),
    "time.perf_counter_ns": _attribute(time, "perf_counter_ns"),
}  # fmt: skip
"""Name → how to read it, how to set it."""


def snapshot() -> dict[str, Any]:
    return {name: read() for name, (read, _) in STATE.items()}


def check(before: dict[str, Any]) -> None:
    """Restores what differs from a snapshot, and raises IntegrityError with its name."""
    changed = [name for name, (read, _) in STATE.items() if read() != before[name]]
    for name in changed:
        STATE[name][1](before[name])
    if changed:
        fail_check(f"changes global state: {', '.join(changed)}")
