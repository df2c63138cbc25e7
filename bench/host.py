"""What this machine is, how busy it is, and how small an effect it can show.

What a system doesn't tell is None. Nothing here raises, and nothing imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import system

ROOT = Path(__file__).resolve().parents[1]
CODE = ("bench", "methods", "tasks", "reports", "conf", "hydra_plugins")
NODES = Path("/sys/devices/system/node")
STEAL_LIMIT_PCT = 5.0
LOAD_MARGIN = 0.5
"""A run that fills its cores has a load of about their number; what is above waits."""

Facts = dict[str, Any]


class Counters(NamedTuple):
    """What the system has counted so far; the difference of two is what a measurement met."""

    steal_ticks: int | None
    total_ticks: int | None
    ctx_switch_invol: int
    throttled_periods: int | None
    load1: float | None


def counters() -> Counters:
    """The counters now. Context switches are those of this process and of its ended children."""
    ticks = [int(field) for field in system.line(Path("/proc/stat"), "cpu ").split()[1:9]]
    throttled = system.line(system.cgroup("cpu") / "cpu.stat", "nr_throttled").split()
    load = None
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0]
    return Counters(
        steal_ticks=ticks[7] if len(ticks) > 7 else None,
        total_ticks=sum(ticks) if len(ticks) > 7 else None,
        ctx_switch_invol=sum(
            resource.getrusage(who).ru_nivcsw
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ),
        throttled_periods=system.first_int(throttled[1:]),
        load1=load,
    )


def fingerprint(threads: int, device: str, since: Counters | None = None) -> Facts:
    """The host columns of a row that runs `threads` threads on `device` (cpu or cuda).

    `since`, taken before the measurement, bounds steal, throttling and context switches to it, and
    its load is the one that counts; without it they cover all time since the machine and this
    process started. `blas` and `onednn` are left to a child that has torch.
    """
    machine = _machine()
    busy = _busyness(since or Counters(0, 0, 0, 0, None))
    reasons = _noise(threads, device, busy)
    return {
        **machine,
        "affinity": ",".join(map(str, system.usable_cpus())) or None,
        "cgroup_cpu": system.cpu_quota(),
        "cgroup_mem_bytes": min((limit for limit, _ in system.memory_limits()), default=None),
        "gpu_clock_mhz": _gpu_clock_mhz() if device == "cuda" else None,
        **busy,
        "noisy": bool(reasons),
        "noise_reason": "; ".join(reasons) or None,
        **_software(),
        **_code(),
    }


@functools.cache
def _machine() -> Facts:
    """What stays the same; `host_id` hashes what an update or a reboot doesn't change either."""
    smt = system.text(system.CPUS / "smt/active")
    model = system.line(Path("/proc/cpuinfo"), "model name").partition(":")[2].strip()
    stable = {
        "cpu_model": model or platform.processor() or None,
        "cores_phys": _physical(range(os.cpu_count() or 0)),
        "cores_logical": os.cpu_count(),
        "smt": None if smt is None else smt == "1",
        "numa": len(list(NODES.glob("node[0-9]*"))) or None,
        "virt": _virt(),
        **_gpu(),
    }
    memory = system.meminfo_bytes("MemTotal")
    identity = [str(value) for value in stable.values()] + [str((memory or 0) >> 30)]
    return {
        "host_id": hashlib.sha256("|".join(identity).encode()).hexdigest()[:16],
        **stable,
        "mem_total_bytes": memory,
        "governor": system.text(system.CPUS / "cpu0/cpufreq/scaling_governor"),
        "os_kernel": platform.release() or None,
        "libc": _libc(),
    }


def _physical(cpus: range | list[int]) -> int | None:
    """How many physical cores these logical ones are."""
    cores = {system.text(system.CPUS / f"cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    return len(cores) if cores and None not in cores else None


def _busyness(since: Counters) -> Facts:
    now = counters()
    steal_pct = throttled = None
    if now.steal_ticks is not None and now.total_ticks is not None:
        elapsed = max(1, now.total_ticks - (since.total_ticks or 0))
        steal_pct = 100.0 * (now.steal_ticks - (since.steal_ticks or 0)) / elapsed
    if now.throttled_periods is not None:
        throttled = now.throttled_periods > (since.throttled_periods or 0)
    return {
        "steal_pct": steal_pct,
        "load1": now.load1 if since.load1 is None else since.load1,
        "ctx_switch_invol": now.ctx_switch_invol - since.ctx_switch_invol,
        "throttled": throttled,
    }


def _noise(threads: int, device: str, busy: Facts) -> list[str]:
    """Why a measurement here wouldn't be fair; empty when nothing speaks against it."""
    usable, quota = system.usable_cpus(), system.cpu_quota()
    cores, reasons = _physical(usable) or len(usable), []
    if device == "cpu" and cores and threads > cores:
        reasons.append(f"{threads} threads on {cores} physical cores")
    if device == "cpu" and quota and threads > quota:
        reasons.append(f"{threads} threads in a control group of {quota:g} cores")
    if (busy["steal_pct"] or 0.0) > STEAL_LIMIT_PCT:
        reasons.append(f"other guests took {busy['steal_pct']:.1f} % of the processor")
    if usable and (busy["load1"] or 0.0) > len(usable) + LOAD_MARGIN:
        reasons.append(f"load {busy['load1']:.1f} on {len(usable)} cores")
    if busy["throttled"]:
        reasons.append("the control group stopped the process for a while")
    return reasons


def available_memory() -> int:
    """Bytes that a new process can take before something is killed: the least of what the machine
    has free and what each control group still grants."""
    free = system.meminfo_bytes("MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(0, min([free, *(limit - used for limit, used in system.memory_limits())]))


def certificate(pairs: int = 40, seconds: float = 5.0, seed: int = 0) -> Facts:
    """A live A/A run in this process, on one thread: what `pairs` pairs can tell apart here.

    Times the same work in pairs for `seconds` and at least 10 pairs, then some seconds more of
    statistics. `aa_noise_pct` is the error of a ratio between equals (90th percentile),
    `detectable_pct` the smallest slow-down that is found four times out of five (None: none is),
    `aa_verdict` what the first `pairs` pairs were judged to be.
    """
    import numpy as np

    from bench import stats

    numbers = np.random.default_rng(seed).standard_normal(100_000)

    def sample_ns() -> int:
        began = time.perf_counter_ns()
        np.sort(numbers)
        np.exp(numbers)
        sum(range(50_000))
        return time.perf_counter_ns() - began

    for _ in range(20):
        sample_ns()
    coin = random.Random(seed)
    samples: list[tuple[int, int]] = []
    end = time.monotonic() + seconds
    while len(samples) < 10 or time.monotonic() < end:
        one, other = sample_ns(), sample_ns()
        samples.append((one, other) if coin.random() < 0.5 else (other, one))
    first, second = zip(*samples, strict=True)
    noise_pct = stats.aa_noise_pct(first, second, pairs, seed)
    smallest_pct = stats.detectable_pct(first, second, pairs, seed=seed)
    whole = stats.paired_ratio(first[:pairs], second[:pairs], seed)
    return {
        "pairs": pairs,
        "aa_pairs": len(samples),
        "sample_median_ns": stats.summary(first).median_ns,
        "aa_noise_pct": noise_pct,
        "detectable_pct": None if smallest_pct == float("inf") else smallest_pct,
        "aa_verdict": stats.verdict(whole, noise_pct),
    }


def _libc() -> str | None:
    with contextlib.suppress(ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def _virt() -> str:
    """The virtual machine and the container around this process, or none."""
    layers = []
    if "gVisor" in (system.text(Path("/proc/version")) or ""):
        layers.append("gvisor")
    elif "hypervisor" in system.line(Path("/proc/cpuinfo"), "flags").split():
        layers.append(system.text(Path("/sys/class/dmi/id/sys_vendor")) or "virtual machine")
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        layers.append("container")
    return " + ".join(layers) or "none"


def _gpu() -> Facts:
    name, driver = _nvidia("name", "driver_version")
    return {"gpu_name": name, "gpu_driver": driver}


def _gpu_clock_mhz() -> int | None:
    return system.first_int(_nvidia("clocks.sm"))


def _nvidia(*fields: str) -> list[str | None]:
    """What the driver tells of the first GPU that this process sees; all None without one."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    first_seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first_seen.isdigit() or first_seen.startswith("GPU-"):
        query.append(f"--id={first_seen}")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        first = [field.strip() for field in said.partition("\n")[0].split(",")]
        if len(first) == len(fields):
            return [*first]
    return [None] * len(fields)


@functools.cache
def _software() -> Facts:
    torch = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.version("torch")
    # These folders' names hold name and version; opening each would take most of a second.
    installed = {
        entry.name
        for folder in map(Path, filter(None, sys.path))
        for pattern in ("*.dist-info", "*.egg-info")
        for entry in folder.glob(pattern)
    }
    return {
        "python": platform.python_version(),
        "torch": torch,
        "blas": None,
        "onednn": None,
        "packages_sha": hashlib.sha256("\n".join(sorted(installed)).encode()).hexdigest()[:16],
    }


def _code() -> Facts:
    """The commit of this project's checkout, not of the current folder's; None when installed."""
    facts: Facts = {"code_sha": None, "code_dirty": None}
    if not (ROOT / ".git").exists():
        return facts
    command = ["git", "--no-optional-locks", "-C", str(ROOT), "status", "--porcelain=v2"]
    # Within a git hook these variables would point to another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        lines = subprocess.run(
            [*command, "--branch", "--", *CODE],
            capture_output=True, text=True, timeout=10, check=True, env=clean,
        ).stdout.splitlines()  # fmt: skip
        heads = [line.split()[-1] for line in lines if line.startswith("# branch.oid")]
        facts["code_sha"] = heads[0] if heads and heads[0] != "(initial)" else None
        facts["code_dirty"] = any(not line.startswith("#") for line in lines)
    return facts
