"""Peak memory of one arm in a process of its own: one cold forward, VmHWM after a reset.

The kernel adds up a process's pages in batches, one for each processor, and its high-water mark
lacks what is still in them: up to 128 KiB a processor. That is nothing beside a large peak. A small
one is measured again and again with the batch begun at another page, and the greatest counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bench import system
from bench.cell import Cell
from bench.children import arms, child, gate, malloc
from bench.models.base import Family
from methods.base import Sequence

SMALL = 64  # tokens of the forward that loads code pages and pools before the base is read
SAMPLE_S = 1e-3
PAGE = os.sysconf("SC_PAGE_SIZE")
BATCH = max(32, 2 * (os.cpu_count() or 1))  # pages, as in the kernel's lib/percpu_counter.c
PHASES = 32
EXACT_BELOW = 100  # batches a thread: from there on what they hide is below one per cent


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """Bytes beyond the loaded model that one forward needs at its peak."""
    cell = Cell.from_json(request["cell"])
    malloc.give_back_at_once()
    arms.prepare(cell)
    method = arms.vanilla() if request["arm"] == "vanilla" else arms.method_of(cell)
    family = arms.load(cell, method)
    [(ids, sequence)] = arms.longest_inputs(cell, family, 1)
    result: dict[str, Any] = {
        "weights_bytes": sum(p.numel() * p.element_size() for p in family.model.parameters()),
        "state_theory_bytes": method.state_bytes(family.shape(ids.shape[1], ids.shape[0])),
    }
    report("memory")
    with torch.inference_mode():
        for weight in family.model.parameters():
            weight.sum()  # touches every mapped page, so that reading weights is no peak
        arms.first_token(family, *beginning(ids, sequence))
        if cell.device["kind"] == "cuda":
            return result | cuda_peak(family, ids, sequence)
        return result | host_peak(family, ids, sequence)


def beginning(ids: torch.Tensor, sequence: Sequence) -> gate.Input:
    """The first tokens of each row. Where the query isn't among them the first is one."""
    valid, vip = (
        None if x is None else x[:, :SMALL].clone() for x in (sequence.valid, sequence.vip)
    )
    if vip is not None:
        vip[:, 0] |= ~vip.any(1)
    return ids[:, :SMALL], sequence.replace(valid=valid, vip=vip)


def host_peak(family: Family, ids: torch.Tensor, sequence: Sequence) -> dict[str, Any]:
    """Resident bytes by the kernel's own high-water mark, then the allocator's by its trace."""
    if not can_reset():
        return sampled_peak(family, ids, sequence)

    def forward() -> None:
        arms.first_token(family, ids, sequence)

    base, cold = peak(forward)
    _, warm = peak(forward)
    if warm < EXACT_BELOW * BATCH * PAGE * torch.get_num_threads():
        starts = range(0, BATCH, BATCH // PHASES)
        warm = max(peak(forward, start)[1] for start in starts)
    check_mark(family, ids, sequence, max(cold, warm))
    return {
        "mem_method": "VmHWM",
        "rss_base_bytes": base,
        "rss_peak_delta_bytes": max(cold, warm),
        "rss_peak_warm_delta_bytes": warm,
        "alloc_peak_bytes": traced(family, ids, sequence),
    }


def peak(work: Callable[[], object], start: int = 0) -> tuple[int, int]:
    """Resident bytes before the work and how far it went beyond them; `start` is the number of
    pages that are in the kernel's batch when it begins."""
    base = at_rest()
    gc.disable()  # or it comes at another moment in each process, and some memory with it
    try:
        with touched(start):
            clear_mark()
            work()
            return base, status_bytes("VmHWM") - base - start * PAGE
    finally:
        gc.enable()


def sampled_peak(family: Family, ids: torch.Tensor, sequence: Sequence) -> dict[str, Any]:
    """Resident bytes as a thread saw them every millisecond: at least so many. For kernels that
    can't reset the high-water mark (gVisor, some containers)."""
    reason = "the kernel offers no clear_refs here"
    result = {
        "mem_method": None,
        "mem_reason": reason,
        "alloc_peak_bytes": traced(family, ids, sequence),
    }
    try:
        base = status_bytes("VmRSS")
    except OSError as error:
        return {**result, "mem_reason": f"{reason}, and {error}"}
    seen, over = [base], threading.Event()

    def look() -> None:
        while not over.wait(SAMPLE_S):
            seen.append(status_bytes("VmRSS"))

    watch = threading.Thread(target=look)
    watch.start()
    arms.first_token(family, ids, sequence)
    over.set()
    watch.join()
    return {
        **result,
        "mem_method": "VmRSS, sampled",
        "mem_reason": f"{reason}: what came and went within a millisecond may be missing",
        "rss_base_bytes": base,
        "rss_peak_delta_bytes": max(seen) - base,
    }


def check_mark(family: Family, ids: torch.Tensor, sequence: Sequence, peak_bytes: int) -> None:
    """Raises Cheat when a forward takes back the high-water mark that it is measured by: what was
    resident before it, and more than it is said to need, must still be in the mark after it."""
    slack = BATCH * torch.get_num_threads()
    before = peak_bytes // PAGE + 4 * slack
    base = at_rest()
    with touched(before):
        pass
    arms.first_token(family, ids, sequence)
    if status_bytes("VmHWM") < base + (before - slack) * PAGE:
        gate.accuse("frees memory before it is read: the high-water mark was reset within a call")


def cuda_peak(family: Family, ids: torch.Tensor, sequence: Sequence) -> dict[str, Any]:
    """Device bytes by torch's allocator, beyond what is allocated before the forward. The first
    forward is not counted: it makes the libraries' workspaces, which stay."""
    arms.first_token(family, ids, sequence)
    return {
        "mem_method": "cuda_allocator",
        "gpu_alloc_delta_bytes": allocated(lambda: arms.first_token(family, ids, sequence)),
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved(),
        "gpu_nvml_bytes": system.gpu_process_bytes(os.getpid()),
    }


def allocated(work: Callable[[], object]) -> int:
    """Device bytes by torch's allocator that the work needs at its peak."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - base


def traced(family: Family, ids: torch.Tensor, sequence: Sequence) -> int | None:
    """The running maximum of torch's own allocations: the same on every machine, but blind to
    what native code takes."""
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as trace:
        arms.first_token(family, ids, sequence)
    held = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def can_reset() -> bool:
    try:
        clear_mark()
        return True
    except OSError:
        return False


def clear_mark() -> None:
    """The high-water mark begins anew."""
    Path("/proc/self/clear_refs").write_text("5")


def at_rest() -> int:
    """Give freed memory back; returns the resident bytes as the high-water mark counts them.

    A known number of pages comes and goes: that empties the batch, and what the mark shows beyond
    them is there without them. The mark is left with them in it.
    """
    gc.collect()
    # Another libc keeps what it keeps: the base is then higher, the difference still right.
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    for _ in range(2):  # once to empty the batch, once to count
        clear_mark()
        with touched(4 * BATCH):
            pass
    return status_bytes("VmHWM") - 4 * BATCH * PAGE


@contextlib.contextmanager
def touched(pages: int) -> Iterator[None]:
    """That many pages more are resident inside."""
    if not pages:
        yield
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, pages * PAGE, flags=flags) as held:
        view = memoryview(held)
        view[::PAGE] = b"\1" * pages
        view.release()
        yield


def status_bytes(field: str) -> int:
    """One figure of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
