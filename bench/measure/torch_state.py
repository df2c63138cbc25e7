"""Global state of torch that changes the speed of later calls. It is restored after each call, and
the row names what a method changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

_sdpa: Any = torch.backends.cuda
_DENORMAL = 5e-324


def _flushes_denormals() -> bool:
    return _DENORMAL * 1.0 == 0.0


def _modes() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def _leave_modes(before: tuple[int, int]) -> None:
    while torch._C._len_torch_function_stack() > before[0]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > before[1]:
        torch._C._pop_torch_dispatch_stack(None)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's threads": (torch.get_num_threads, torch.set_num_threads),
    "the processor affinity": (
        lambda: os.sched_getaffinity(0), lambda cpus: os.sched_setaffinity(0, cpus),
    ),
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
    "flash attention": (_sdpa.flash_sdp_enabled, _sdpa.enable_flash_sdp),
    "memory-efficient attention": (_sdpa.mem_efficient_sdp_enabled, _sdpa.enable_mem_efficient_sdp),
    "unfused attention": (_sdpa.math_sdp_enabled, _sdpa.enable_math_sdp),
    "cuDNN's attention": (_sdpa.cudnn_sdp_enabled, _sdpa.enable_cudnn_sdp),
    "torch's function or dispatch modes": (_modes, _leave_modes),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch's attention function": _attribute(functional, "scaled_dot_product_attention"),
}  # fmt: skip
"""Name → how to read it, how to set it."""


def snapshot() -> dict[str, Any]:
    return {name: read() for name, (read, _) in STATE.items()}


def restore(before: dict[str, Any]) -> list[str]:
    """Put back what differs from a snapshot; its names."""
    changed = [name for name, (read, _) in STATE.items() if read() != before[name]]
    for name in changed:
        STATE[name][1](before[name])
    return changed
