"""Peak memory of one arm in a separate process: one cold forward, then VmHWM, the kernel's
high-water mark of resident memory.

The kernel counts a process's pages in batches, one per processor, and its high-water mark lacks the
pages still in them: up to 128 KiB per processor. A small peak is therefore measured repeatedly,
with the batch filled to a different page each time, and the greatest value counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import os
import statistics
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.host import gpu, linux
from bench.measure import bytes_read, integrity
from bench.measure.integrity import fail_check
from bench.measure.perturbed_inputs import Input
from bench.models.base import Decoding, Family
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows.columns import Row
from methods.base import KVCache, SequenceInfo, Workload

Work = Callable[[], object]

WARM_UP_TOKENS = 64  # for the forward that loads code pages and pools before the base is read
VIP_TOKENS = 32
SAMPLE_S = 1e-3
PAGE = os.sysconf("SC_PAGE_SIZE")
BATCH = max(32, 2 * (os.cpu_count() or 1))  # pages, as in the kernel's lib/percpu_counter.c
HIDDEN_FRAC = 0.005
"""Share of a peak that the batches may hide. It determines the number of measurements."""
MOST_PHASES = 32
COUNTED_STEPS = 3
"""Steps at the end of an answer. Growing a storage reads all of it; this doesn't happen in their
median step."""


def measure(request: dict[str, Any], report: worker.Report) -> Row:
    """Bytes beyond the loaded model that one forward needs at its peak, and the costs of the cache
    from which tokens are decoded. With a `length` in the request, it only tries whether one forward
    of the method fits in memory at this length."""
    cell = Cell.from_json(request["cell"])
    if "length" in request:
        arms.prepare(cell, costs=True)
        family = arms.load(cell, arms.method_of(cell))
        report("probe")
        with torch.inference_mode():
            arms.first_token(family, *random_inputs(cell, family, cell.batch, request["length"]))
        return {}
    on_gpu = cell.device["kind"] == "cuda"
    used_before = gpu.used_bytes() if on_gpu else None
    worker.return_freed_memory()
    arms.prepare(cell, costs=True)
    integrity.adopt_orphans()
    if cell.threads == 1:
        # A thread that moves would leave pages in another processor's batch.
        os.sched_setaffinity(0, {linux.current_cpu()})
    method = arms.vanilla() if request["arm"] == BASELINE else arms.method_of(cell)
    family = arms.load(cell, method)
    [(ids, sequence)] = arms.longest_inputs(cell, family, 1)
    result: Row = {
        "weights_bytes": sum(p.numel() * p.element_size() for p in family.model.parameters()),
        "state_theory_bytes": method.state_bytes(family.workload(ids.shape[1], ids.shape[0])),
    }
    report("memory")
    with torch.inference_mode():
        touch_weights(family)
        arms.first_token(family, *first_tokens(ids, sequence))
        forward = partial(arms.first_token, family, ids, sequence)
        result |= cuda_peak(forward, used_before) if on_gpu else host_peak(forward)
        if cell.new_tokens:
            # Function for this process's resident memory; None if it can't be read exactly.
            on_cpu = resident_bytes if can_reset() else None
            reader = torch.cuda.memory_allocated if on_gpu else on_cpu
            result |= columns(family, ids, sequence, cell.new_tokens, reader)
        integrity.check_processes()
        return result


def random_inputs(cell: Cell, family: Family, rows: int, length: int) -> Input:
    """Ids [rows, length] without padding; the first tokens are VIP."""
    config: Any = family.model.config
    ids = torch.randint(2, config.vocab_size, (rows, length)).to(cell.device["kind"])
    vip = torch.zeros_like(ids, dtype=torch.bool)
    vip[:, :VIP_TOKENS] = True
    return ids, SequenceInfo(vip=vip)


def touch_weights(family: Family) -> None:
    for weight in family.model.parameters():
        weight.sum()


def first_tokens(ids: torch.Tensor, sequence: SequenceInfo) -> Input:
    """The first tokens of each row. If no VIP token is among them, the first one is made VIP."""
    valid, vip = (
        None if x is None else x[:, :WARM_UP_TOKENS].clone() for x in (sequence.valid, sequence.vip)
    )
    if vip is not None:
        vip[:, 0] |= ~vip.any(1)
    return ids[:, :WARM_UP_TOKENS], sequence.replace(valid=valid, vip=vip)


def host_peak(forward: Work) -> Row:
    if not can_reset():
        return sampled_peak(forward)
    gc.freeze()  # each measurement collects, and needs to check only the objects that forwards make
    base, cold = peak(forward)
    _, warm = peak(forward)
    for start in batch_starts(warm):
        warm = max(warm, peak(forward, start)[1])
    check_high_water_mark(forward, max(cold, warm))
    in_files = linux.memory_file_bytes()
    return {
        "mem_method": "VmHWM + files in memory" if in_files else "VmHWM",
        "rss_base_bytes": base,
        "rss_peak_delta_bytes": max(cold, warm) + in_files,
        "rss_peak_warm_delta_bytes": warm,
        "alloc_peak_bytes": profiled_peak(forward),
    }


def batch_starts(peak_bytes: int) -> list[int]:
    """Numbers of pages put into the kernel's batch before each further measurement of a peak of
    this size: evenly spaced, so that at most HIDDEN_FRAC of it stays hidden."""
    hidden = BATCH * PAGE * torch.get_num_threads()
    phases = min(MOST_PHASES, math.ceil(hidden / max(1.0, HIDDEN_FRAC * peak_bytes)))
    return [BATCH * phase // phases for phase in range(1, phases)]


def peak(work: Work, start: int = 0) -> tuple[int, int]:
    """Resident bytes before the work, and their largest rise during it; `start` is the number of
    pages that the kernel's batch already holds."""
    base = resident_bytes()
    gc.disable()  # it would run at different moments in each process, and change the peak
    with touched(start):
        reset_high_water_mark()
        work()
        high = linux.status_bytes("VmHWM")
    gc.enable()
    return base, high - base - start * PAGE


def sampled_peak(forward: Work) -> Row:
    """The largest resident bytes that a thread sampled every millisecond, a lower bound, for
    kernels that can't reset the high-water mark (gVisor, some containers)."""
    allocated = profiled_peak(forward)
    samples, finished = [linux.status_bytes("VmRSS")], threading.Event()

    def sample() -> None:
        while not finished.wait(SAMPLE_S):
            samples.append(linux.status_bytes("VmRSS"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    forward()
    finished.set()
    sampler.join()
    return {
        "mem_method": "VmRSS, sampled",
        "mem_reason": "no clear_refs here: allocations shorter than a millisecond may be missing",
        "rss_base_bytes": samples[0],
        "rss_peak_delta_bytes": max(samples) - samples[0],
        "alloc_peak_bytes": allocated,
    }


def check_high_water_mark(forward: Work, peak_bytes: int) -> None:
    """Raises IntegrityError when a forward resets the high-water mark: an amount larger than its
    peak that was resident before it must still be included in the mark after it."""
    # A thread that moves to another CPU leaves pages in the batches of both. A thread that ends
    # meanwhile returns its stack.
    margin = 8 * BATCH * len(linux.usable_cpus())
    before = peak_bytes // PAGE + 2 * margin
    base = resident_bytes()
    with touched(before):
        pass
    forward()
    if linux.status_bytes("VmHWM") < base + (before - margin) * PAGE:
        fail_check("frees memory before it is read: the high-water mark was reset within a call")


def cuda_peak(forward: Work, used_before: int | None = None) -> Row:
    """Peak device bytes of torch's allocator beyond those allocated before the forward, and the
    process's bytes by the driver: torch keeps reserved memory, so these are its peak.
    `used_before`: bytes in use on the whole GPU before this process used it, for drivers that can't
    distinguish processes. A forward before it allocates the libraries' workspaces, which stay."""
    forward()
    columns: Row = {
        "mem_method": "cuda_allocator",
        "gpu_alloc_delta_bytes": cuda_allocated(forward),
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved(),
        "gpu_nvml_bytes": gpu.process_bytes(os.getpid()),
    }
    used = gpu.used_bytes()
    if columns["gpu_nvml_bytes"] is None and used_before is not None and used is not None:
        columns["gpu_nvml_bytes"] = used - used_before
        columns["mem_reason"] = "by the driver: growth of the whole GPU's memory in use"
    return columns


def cuda_allocated(work: Work) -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - base


def profiled_peak(forward: Work) -> int:
    """The peak of torch's own allocations: the same on every machine, but without the allocations
    of native libraries."""
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as trace:
        forward()
    allocated = peak_bytes = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak_bytes = max(peak_bytes, allocated)
    return peak_bytes


def can_reset() -> bool:
    with contextlib.suppress(OSError):
        reset_high_water_mark()
        return True
    return False


def reset_high_water_mark() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def resident_bytes() -> int:
    """Return freed memory to the kernel, and return the resident bytes by the high-water mark.

    Allocating and freeing a known number of pages empties the kernel's batch; the mark minus these
    pages is the resident memory without them.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    for _ in range(2):  # once to empty the batch, once to count
        reset_high_water_mark()
        with touched(4 * BATCH):
            pass
    return linux.status_bytes("VmHWM") - 4 * BATCH * PAGE


@contextlib.contextmanager
def touched(pages: int) -> Iterator[None]:
    """Inside, keeps `pages` more pages resident."""
    if not pages:
        yield
        return
    with mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
        view = memoryview(mapping)
        view[::PAGE] = b"\1" * pages
        view.release()
        yield


# Cost of a cache of keys and values: the bytes that it holds and those that a new token reads,
# counted, and its resident memory, measured.


def columns(
    family: Family,
    ids: Tensor,
    sequence: SequenceInfo,
    new_tokens: int,
    resident_bytes: Callable[[], int] | None,
) -> Row:
    """The cache's columns after the prompts ids [B, n] and `new_tokens` − 1 steps, whose tokens are
    the prompt's in order. `resident_bytes` reads this process's memory with and without the
    cache; None: it can't be read."""
    decoding = family.prefill(ids, sequence)
    if decoding.cache is None:
        return {"kv_reason": "the decoder of an encoder-decoder keeps its keys and values itself"}
    count = CacheCount(decoding)
    (batch, n), steps = ids.shape, new_tokens - 1
    # A cache reports a row of a padded batch as if it were alone.
    padded = sequence.valid is not None and not bool(sequence.valid.all())
    for step in range(steps):
        token = ids[:, step % n, None]
        if not padded and step >= steps - COUNTED_STEPS:
            count.step(token)
        else:
            decoding.step(token)
    found = count.columns(family.workload(n, batch), steps)
    if resident_bytes:
        with_cache = resident_bytes()
        del decoding, count
        found["kv_bytes_resident"] = with_cache - resident_bytes()
    return found


class CacheCount:
    """Counts the bytes that a cache holds and that new tokens read, from the end of a prompt on."""

    def __init__(self, decoding: Decoding) -> None:
        assert decoding.cache is not None
        self.decoding, self.cache = decoding, decoding.cache
        self.prefilled, self.read = held_bytes(self.cache), self.cache.read_bytes
        self.reported_pct: list[float] = []

    def step(self, token: Tensor) -> None:
        """Reads the next token [B, 1], and compares the counted bytes with those that the cache
        reports."""
        counted, reported = bytes_read.counted_and_reported(self.decoding, token)
        self.reported_pct += [100 * reported / counted] if counted else []

    def columns(self, workload: Workload, steps: int) -> Row:
        """The cache's columns after a prompt of this workload and some steps."""
        read = self.cache.read_bytes - self.read
        return {
            "kv_bytes_held_prefill": self.prefilled,
            "kv_bytes_held": held_bytes(self.cache),
            "kv_bytes_read_per_token": read // (steps * workload.batch),
            "kv_read_reported_pct": (
                statistics.median_low(self.reported_pct) if self.reported_pct else None
            ),
            "kv_bytes_full": (workload.length + steps) * workload.bytes_per_entry(),
            "kv_entries": entries(self.cache),
        }


def held_bytes(cache: KVCache) -> int:
    """Bytes of storage of all tensors that a cache holds, each counted once: a view counts as the
    whole storage that it keeps."""
    storages = [tensor.untyped_storage() for tensor in cache.held()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def entries(cache: KVCache) -> float | None:
    """Entries of a key head, the mean over layers; None for a cache that isn't made of
    `methods.parts.kv_cache.Entries`."""
    sizes = [getattr(layer, "size", None) for layer in getattr(cache, "layers", {}).values()]
    known = [size for size in sizes if size is not None]
    return statistics.fmean(known) if known and len(known) == len(sizes) else None
