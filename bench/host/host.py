"""Facts about this machine, its load, the smallest effect that it resolves, and the Slurm job and
other work on it.

Facts that a system doesn't report are None. Only `check_preempted` raises, and nothing imports
torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.host import gpu, linux
from bench.units import counted

ROOT = Path(__file__).resolve().parents[2]
CODE = ("bench", "methods", "tasks", "reports", "conf", "hydra_plugins")
NODES = Path("/sys/devices/system/node")
STEAL_LIMIT_PCT = 5.0
LOAD_MARGIN = 0.5
"""A run that fills its cores has a load of about their number; further processes wait."""
OTHERS_LIMIT_PCT = 10.0
"""Share of the time of the cores that a run may use, taken by processes of others."""

HOST_ID_SCHEME = "h2-"
"""Prefix of a `host_id`. Ids without it are older and leave out the instruction sets and the
microarchitecture, so that processors of one name that run different kernels share an id."""

Facts = dict[str, Any]


class CoreSeconds(NamedTuple):
    """Time of the logical cores that this process may use, and the part used by other processes."""

    all_s: float
    others_s: float


class Counters(NamedTuple):
    """The system's counters; the difference of two shows what happened during a measurement."""

    steal_ticks: int | None
    total_ticks: int | None
    ctx_switch_invol: int
    throttled_periods: int | None
    load1: float | None
    cores: CoreSeconds | None = None


def counters(working_for_it: Sequence[linux.Usage] = ()) -> Counters:
    """The counters now. Those of this process include its ended children, and further processes
    that work for it, for which it hasn't waited."""
    ticks = linux.ticks("cpu ")
    used = [linux.usage(), *working_for_it]
    throttled = linux.line(linux.cgroup("cpu") / "cpu.stat", "nr_throttled").split()
    return Counters(
        steal_ticks=ticks[7] if ticks else None,
        total_ticks=sum(ticks) if ticks else None,
        ctx_switch_invol=sum(each.ctx_switch_invol for each in used),
        throttled_periods=linux.first_int(throttled[1:]),
        load1=os.getloadavg()[0],
        cores=_core_seconds(own_s=sum(each.cpu_s for each in used)),
    )


def _core_seconds(own_s: float) -> CoreSeconds | None:
    cores = [linux.ticks(f"cpu{cpu} ") for cpu in linux.usable_cpus()]
    if not all(cores):
        return None
    per_second = os.sysconf("SC_CLK_TCK")
    busy = sum(sum(core) - core[3] - core[4] - core[7] for core in cores)  # idle, iowait, steal
    return CoreSeconds(sum(map(sum, cores)) / per_second, busy / per_second - own_s)


def fingerprint(
    threads: int, device: str, since: Counters | None = None, now: Counters | None = None
) -> Facts:
    """The host columns of a row that runs `threads` threads on `device` (cpu or cuda).

    With `since`, taken before the measurement, counters are those from it to `now`, and the load is
    that of `since`; without it they cover all time since the machine and this process started.
    """
    busy = _busyness(since or Counters(0, 0, 0, 0, None), now or counters())
    reasons = _noise(threads, device, busy)
    return {
        **_machine(),
        "affinity": ",".join(map(str, linux.usable_cpus())) or None,
        "cgroup_cpu": linux.cpu_quota(),
        "cgroup_mem_bytes": min((limit for limit, _ in linux.memory_limits()), default=None),
        **busy,
        "noisy": bool(reasons),
        "noise_reason": "; ".join(reasons) or None,
        **_software(),
        **_code(),
    }


def has_older_id(host_id: str | None) -> bool:
    """Whether an id is older than HOST_ID_SCHEME."""
    return host_id is not None and not host_id.startswith(HOST_ID_SCHEME)


def short_host(host_id: str | None) -> str:
    """The beginning of an id, as tables show it, with a mark if it is older than HOST_ID_SCHEME."""
    if host_id is None:
        return "unknown"
    if has_older_id(host_id):
        return f"{host_id[:8]} (older id)"
    return host_id[: len(HOST_ID_SCHEME) + 8]


@functools.cache
def _machine() -> Facts:
    """Constant facts; `host_id` hashes those that also survive updates and reboots."""
    import psutil

    smt = linux.text(linux.CPUS / "smt/active")
    model = linux.line(Path("/proc/cpuinfo"), "model name").partition(":")[2].strip()
    gpu_name, gpu_driver = gpu.name(), gpu.driver()
    stable = {
        "cpu_model": model or platform.processor() or None,
        "cores_phys": _physical(range(os.cpu_count() or 0)),
        "cores_logical": os.cpu_count(),
        "smt": None if smt is None else smt == "1",
        "numa": len(list(NODES.glob("node[0-9]*"))) or None,
        "virt": _virt(),
        "gpu_name": gpu_name,
        "gpu_driver": gpu_driver,
        "instruction_sets": linux.instruction_sets(),
    }
    memory: int = psutil.virtual_memory().total
    identity = [*map(str, stable.values()), str(memory >> 30), *linux.microarchitecture()]
    return {
        "host_id": HOST_ID_SCHEME + hashlib.sha256("|".join(identity).encode()).hexdigest()[:16],
        **stable,
        "mem_total_bytes": memory,
        "governor": linux.text(linux.CPUS / "cpu0/cpufreq/scaling_governor"),
        "os_kernel": platform.release() or None,
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def _physical(cpus: range | list[int]) -> int | None:
    """The number of physical cores to which these logical cores belong."""
    cores = {linux.text(linux.CPUS / f"cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    return len(cores) if cores and None not in cores else None


def _busyness(since: Counters, now: Counters) -> Facts:
    steal_pct = throttled = others_pct = None
    if now.steal_ticks is not None and now.total_ticks is not None:
        elapsed = max(1, now.total_ticks - (since.total_ticks or 0))
        steal_pct = 100.0 * (now.steal_ticks - (since.steal_ticks or 0)) / elapsed
    before, after = since.cores, now.cores
    if before and after:
        elapsed_s = max(1.0, after.all_s - before.all_s)
        others_pct = 100.0 * max(0.0, after.others_s - before.others_s) / elapsed_s
    if now.throttled_periods is not None:
        throttled = now.throttled_periods > (since.throttled_periods or 0)
    return {
        "steal_pct": steal_pct,
        "load1": now.load1 if since.load1 is None else since.load1,
        "others_pct": others_pct,
        "ctx_switch_invol": now.ctx_switch_invol - since.ctx_switch_invol,
        "throttled": throttled,
    }


def _noise(threads: int, device: str, busy: Facts) -> list[str]:
    """Reasons why times measured now would be noisy."""
    usable, quota = linux.usable_cpus(), linux.cpu_quota()
    cores, reasons = _physical(usable) or len(usable), []
    if device == "cpu" and cores and threads > cores:
        reasons.append(f"{threads} threads on {cores} physical cores")
    if device == "cpu" and quota and threads > quota:
        reasons.append(f"{threads} threads in a control group of {quota:g} cores")
    if (busy["steal_pct"] or 0.0) > STEAL_LIMIT_PCT:
        reasons.append(f"other guests took {busy['steal_pct']:.1f} % of the processor")
    all_cores = os.cpu_count() or len(usable)  # the load is that of all cores
    if (busy["load1"] or 0.0) > all_cores + LOAD_MARGIN:
        reasons.append(f"load {busy['load1']:.1f} on {counted(all_cores, 'core')}")
    if (busy["others_pct"] or 0.0) > OTHERS_LIMIT_PCT:
        share = f"{busy['others_pct']:.0f} % of {counted(len(usable), 'core')}"
        reasons.append(f"other processes took {share} while it was measured")
    if busy["throttled"]:
        reasons.append("the control group stopped the process for a while")
    return reasons


def available_memory() -> int:
    """Bytes that a new process can allocate before something is killed."""
    import psutil

    free: int = psutil.virtual_memory().available
    return max(0, min([free, *(limit - used for limit, used in linux.memory_limits())]))


def certificate(pairs: int = 40, seconds: float = 5.0) -> Facts:
    """An A/A run in this process, on one thread: the smallest effect that `pairs` pairs resolve.

    Takes `seconds`, at least 10 pairs, and some seconds more for statistics. `aa_noise_pct` is the
    error of a ratio between equals (90th percentile), `detectable_pct` the smallest slow-down found
    with probability 0.8 (None: none is), `aa_verdict` the verdict on the first `pairs` pairs.
    """
    import numpy as np

    from bench.statistics import paired

    numbers = np.random.default_rng(0).standard_normal(100_000)

    def sample_ns() -> int:
        began = time.perf_counter_ns()
        np.sort(numbers)
        np.exp(numbers)
        sum(range(50_000))
        return time.perf_counter_ns() - began

    for _ in range(20):
        sample_ns()
    order = random.Random(0)
    samples: list[tuple[int, int]] = []
    end = time.monotonic() + seconds
    while len(samples) < 10 or time.monotonic() < end:
        one, other = sample_ns(), sample_ns()
        samples.append((one, other) if order.random() < 0.5 else (other, one))
    first, second = zip(*samples, strict=True)
    noise_pct = paired.aa_noise_pct(first, second, pairs)
    smallest_pct = paired.detectable_pct(first, second, pairs)
    whole = paired.paired_ratio(first[:pairs], second[:pairs])
    return {
        "pairs": pairs,
        "aa_pairs": len(samples),
        "sample_median_ns": paired.summary(first).median_ns,
        "aa_noise_pct": noise_pct,
        "detectable_pct": None if smallest_pct == float("inf") else smallest_pct,
        "aa_verdict": paired.verdict(whole, noise_pct),
    }


def _virt() -> str:
    """The virtual machine and the container that this process runs in, or none."""
    layers = []
    if "gVisor" in (linux.text(Path("/proc/version")) or ""):
        layers.append("gvisor")
    elif "hypervisor" in linux.line(Path("/proc/cpuinfo"), "flags").split():
        layers.append(linux.text(Path("/sys/class/dmi/id/sys_vendor")) or "virtual machine")
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        layers.append("container")
    return " + ".join(layers) or "none"


@functools.cache
def _software() -> Facts:
    torch = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.version("torch")
    # The folder names hold name and version; reading their metadata takes most of a second.
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
    """The commit of this project's checkout, for any current folder; None when installed."""
    facts: Facts = {"code_sha": None, "code_dirty": None}
    if not (ROOT / ".git").exists():
        return facts
    status = git(ROOT, "status", "--porcelain=v2", "--branch", "--", *CODE, timeout_s=10)
    if status is not None:
        lines = status.decode().splitlines()
        heads = [line.split()[-1] for line in lines if line.startswith("# branch.oid")]
        facts["code_sha"] = heads[0] if heads and heads[0] != "(initial)" else None
        facts["code_dirty"] = any(not line.startswith("#") for line in lines)
    return facts


def git(folder: Path, *arguments: str, timeout_s: float | None = None) -> bytes | None:
    """git's output; None when it fails. A git hook's variables would misdirect it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, check=True, env=clean, timeout=timeout_s
        ).stdout
    return None


# Where a cell runs: the launcher, the Slurm job and its node, and other work on that node.

SQUEUE_TIMEOUT_S = 20.0
RUN_ID = uuid.uuid4().hex[:12]
"""The id that all rows of this process share."""


@dataclass(frozen=True)
class Origin:
    """The start of a cell: the id that its row shares with others of one command, the name of the
    launcher, and the sweep's other workers on this machine."""

    run_id: str = RUN_ID
    launcher: str | None = None
    workers: str | None = None

    def columns(self) -> dict[str, Any]:
        """The columns of a row on the place where it runs."""
        job = job_id()
        return {
            "run_id": self.run_id,
            "launcher": self.launcher or ("slurm" if job else "local"),
            "slurm_job_id": job,
            "node": os.environ.get("SLURMD_NODENAME", socket.gethostname()) if job else None,
            "attempt": 1 + int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        }

    def neighbours(self) -> set[str]:
        """Other work known to run on this machine: other jobs on the node, the sweep's other
        workers."""
        names = {self.workers} if self.workers else set()
        if job := job_id():
            node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
            command = ["squeue", "-h", "-r", "-t", "RUNNING", "-w", node, "-o", "%i"]
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                queue = subprocess.run(
                    command, capture_output=True, text=True, timeout=SQUEUE_TIMEOUT_S, check=True
                ).stdout
                names |= {f"job {other}" for other in queue.split() if other != job}
        return names


class JobPreempted(RuntimeError):
    """Slurm is ending the job of this process: preempted, not a result of the cell."""


def check_preempted(exit_signal: int | None) -> None:
    """Raises JobPreempted when a child was ended by the signal that Slurm sends to a whole job."""
    if exit_signal == signal.SIGTERM and job_id():
        raise JobPreempted(f"Slurm is ending job {job_id()}")


def job_id() -> str | None:
    """The job of this process as squeue writes it, such as 17 or 17_3."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    return os.environ.get("SLURM_JOB_ID")


def job_memory_limit() -> int | None:
    """Bytes that Slurm grants the job of this process on its node; None outside a job."""
    node = os.environ.get("SLURM_MEM_PER_NODE")
    cpu, cpus = os.environ.get("SLURM_MEM_PER_CPU"), os.environ.get("SLURM_CPUS_ON_NODE")
    if node and node.isdigit() and int(node):
        return int(node) << 20
    if cpu and cpus and cpu.isdigit() and cpus.isdigit():
        return (int(cpu) * int(cpus)) << 20
    return None


def job_memory_left() -> int | None:
    """Bytes of the limit that this process and its children don't hold; None outside a job."""
    import psutil

    limit = job_memory_limit()
    if limit is None:
        return None
    for process in [own := psutil.Process(), *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # one that has ended holds nothing
            limit -= process.memory_full_info().pss
    return limit
