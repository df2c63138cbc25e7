"""Side effects of a method's calls: global state of torch that changes the speed of later calls,
which is restored and named in the row, and threads and processes left behind, which are an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import psutil
import torch
from torch import Tensor
from torch.nn import functional

_sdpa: Any = torch.backends.cuda
_DENORMAL = 5e-324


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
    "flushing of denormals": (lambda: _DENORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    "oneDNN": _attribute(torch.backends.mkldnn, "enabled"),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "flash attention": (_sdpa.flash_sdp_enabled, _sdpa.enable_flash_sdp),
    "memory-efficient attention": (_sdpa.mem_efficient_sdp_enabled, _sdpa.enable_mem_efficient_sdp),
    "unfused attention": (_sdpa.math_sdp_enabled, _sdpa.enable_math_sdp),
    "cuDNN's attention": (_sdpa.cudnn_sdp_enabled, _sdpa.enable_cudnn_sdp),
    "torch's function or dispatch modes": (
        lambda: (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        _leave_modes,
    ),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch's attention function": _attribute(functional, "scaled_dot_product_attention"),
}  # fmt: skip
"""Name → functions that read it and set it."""


def snapshot() -> dict[str, Any]:
    return {name: read() for name, (read, _) in STATE.items()}


def restore(before: dict[str, Any]) -> list[str]:
    """Restore the state that differs from a snapshot. Returns the names of the differences."""
    changed = [name for name, (read, _) in STATE.items() if read() != before[name]]
    for name in changed:
        STATE[name][1](before[name])
    return changed


# Threads and processes that a method leaves behind: their work is not part of a call's time.

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Have the kernel make each descendant whose parent ends a child of this process, so that a
    daemon can't leave it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def check_python_threads() -> None:
    main = threading.main_thread().ident
    # A progress bar's thread only wakes to redraw it.
    bars = {t.ident for t in threading.enumerate() if type(t).__module__.startswith("tqdm.")}
    if set(sys._current_frames()) - {main} - bars:
        fail_check("works on another thread: one is alive besides the main one")


def check_processes() -> None:
    """Raises IntegrityError when a child process is alive."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if child.status() != psutil.STATUS_ZOMBIE:
                fail_check("works in another process: this one has children")


# The error of a failed integrity check. It is recorded, since a method may catch it.


class IntegrityError(Exception):
    """A method failed a check."""


_failures: list[str] = []


def fail_check(reason: str) -> NoReturn:
    """Raises IntegrityError and records it, since a method may catch errors raised below it."""
    _failures.append(f"integrity check failed: {reason}")
    raise IntegrityError(_failures[-1])


def raise_recorded() -> None:
    """Raises the first IntegrityError that was raised earlier and caught by the method."""
    if _failures:
        raise IntegrityError(_failures[0])


def check_plain_tensor(output: Any) -> None:
    """Raises IntegrityError for a tensor subclass, which may defer its computation."""
    if type(output) is not Tensor:
        fail_check(
            f"returns a {type(output).__name__}, which may compute later, instead of a plain tensor"
        )
