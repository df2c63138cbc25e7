"""What Linux tells of a process and its machine, and what it is asked. What isn't told is None or
nothing."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CPUS = Path("/sys/devices/system/cpu")


def usable_cpus() -> list[int]:
    """Numbers of the logical cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def spread_cpus(count: int) -> list[int]:
    """So many usable logical cores, each on a physical core of its own as far as there are any."""
    siblings: dict[str, list[int]] = {}
    for cpu in usable_cpus():
        core = text(CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        siblings.setdefault(core, []).append(cpu)
    turns = (turn for turn in itertools.zip_longest(*siblings.values()))
    return [cpu for turn in turns for cpu in turn if cpu is not None][:count]


def gpu_process_bytes(pid: int) -> int | None:
    """GPU memory of a process as the driver sees it; None without a driver, or in a container
    that has process numbers of its own."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        for each in said.splitlines():
            number, _, mib = each.partition(",")
            if number.strip() == str(pid) and mib.strip().isdigit():
                return int(mib) << 20
    return None


def cgroup(controller: str) -> Path:
    """Folder of this process's control group for `controller`, of either version."""
    for entry in (text(Path("/proc/self/cgroup")) or "").splitlines():
        _, names, path = entry.split(":", 2)
        if controller in names.split(","):
            return _existing(CGROUPS / controller, path)
    path = line(Path("/proc/self/cgroup"), "0::")[3:].strip()
    return _existing(CGROUPS, path)


def _existing(mount: Path, path: str) -> Path:
    """Within a container the path may be the host's; then the mount itself is the group."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _upwards(folder: Path) -> Iterator[Path]:
    """A group and those it lies in: every one of them limits it."""
    while folder.is_relative_to(CGROUPS) and folder != CGROUPS.parent:
        yield folder
        folder = folder.parent


def die_with_parent() -> None:
    """Have this process killed when its parent ends, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def age_s() -> float:
    """Seconds since this process was started, by a fork or as a program; 0 where nothing tells."""
    stat = (text(Path("/proc/self/stat")) or "").rpartition(")")[2].split()
    uptime = (text(Path("/proc/uptime")) or "").split()
    if len(stat) < 20 or not uptime:
        return 0.0
    return float(uptime[0]) - int(stat[19]) / os.sysconf("SC_CLK_TCK")


def cpu_quota() -> float | None:
    """Cores that the control groups grant; None without a limit."""
    quotas = []
    for group in _upwards(cgroup("cpu")):
        quota, _, period = (text(group / "cpu.max") or "").partition(" ")
        quota = quota or text(group / "cpu.cfs_quota_us") or ""
        period = period or text(group / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limits() -> list[tuple[int, int]]:
    """Limit and use, in bytes, of each control group that limits memory. Cached file pages count
    as free: the kernel drops them before it kills."""
    limits = []
    for group in _upwards(cgroup("memory")):
        limit = first_int([text(group / n) for n in ("memory.max", "memory.limit_in_bytes")])
        used = first_int([text(group / n) for n in ("memory.current", "memory.usage_in_bytes")])
        cached = line(group / "memory.stat", "inactive_file").split()
        if limit is not None and limit < 1 << 60:  # version 1 writes "no limit" as a huge number
            limits.append((limit, (used or 0) - (first_int(cached[1:]) or 0)))
    return limits


def meminfo_bytes(name: str) -> int | None:
    """A figure of /proc/meminfo."""
    kib = first_int(line(Path("/proc/meminfo"), f"{name}:").split()[1:2])
    return None if kib is None else kib * 1024


def text(path: Path) -> str | None:
    """A file's contents; None when it isn't there or can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def line(path: Path, start: str) -> str:
    """The first line that begins with `start`, or nothing."""
    lines = (text(path) or "").splitlines()
    return next((found for found in lines if found.startswith(start)), "")


def first_int(texts: Iterable[str | None]) -> int | None:
    """The first that is a number."""
    return next((int(each) for each in texts if each and each.isdigit()), None)
