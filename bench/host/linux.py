"""Facts that Linux reports about a process, its machine and its processor. Missing facts are None
or empty."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CPUS = Path("/sys/devices/system/cpu")


def usable_cpus() -> list[int]:
    """Numbers of the logical cores on which this process may run."""
    return sorted(os.sched_getaffinity(0))


def thread_cpus() -> list[int]:
    """Numbers of the logical cores on which the threads of this process may run."""
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    return sorted(set().union(*map(os.sched_getaffinity, threads)))


def spread_cpus(count: int) -> list[int]:
    """`count` usable logical cores, on different physical cores as far as possible."""
    siblings: dict[str, list[int]] = {}
    for cpu in usable_cpus():
        core = text(CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        siblings.setdefault(core, []).append(cpu)
    # First one logical core of every physical core, then a second of each, and so on.
    rounds = itertools.zip_longest(*siblings.values())
    return [cpu for cpus in rounds for cpu in cpus if cpu is not None][:count]


@contextlib.contextmanager
def kept_affinity() -> Iterator[None]:
    """Restore at the end of the block the cores on which this thread may run: if OMP_PROC_BIND is
    set, libgomp binds the thread that loads it to the first core."""
    cpus = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


def current_cpu() -> int:
    """Number of the logical core on which this thread runs."""
    return int(ctypes.CDLL(None).sched_getcpu())


def cgroup(controller: str) -> Path:
    """Folder of this process's control group for `controller`, version 1 or 2."""
    mount, path = CGROUPS, line(Path("/proc/self/cgroup"), "0::")[3:]
    for entry in (text(Path("/proc/self/cgroup")) or "").splitlines():
        _, names, group = entry.split(":", 2)
        if controller in names.split(","):
            mount, path = CGROUPS / controller, group
    folder = mount / path.lstrip("/")
    # In a container the path may be the host's; the mount itself is then the group.
    return folder if folder.is_dir() else mount


def _limiting_groups(controller: str) -> list[Path]:
    """This process's control group and its ancestors, each of which limits it."""
    group = cgroup(controller)
    return [one for one in (group, *group.parents) if one.is_relative_to(CGROUPS)]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process `parent` ends for any reason. If it has
    ended already, this process exits."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def age_s() -> float:
    """Seconds since this process was started, by a fork or as a program."""
    started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def waited_ns() -> int:
    """Nanoseconds that this thread was ready to run and waited for a processor. 0 where the kernel
    doesn't count them."""
    counted = (text(Path("/proc/thread-self/schedstat")) or "").split()
    return int(counted[1]) if len(counted) > 1 else 0


def cpu_quota() -> float | None:
    """Cores that the control groups grant; None without a limit."""
    quotas = []
    for group in _limiting_groups("cpu"):
        quota, _, period = (text(group / "cpu.max") or "").partition(" ")
        quota = quota or text(group / "cpu.cfs_quota_us") or ""
        period = period or text(group / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limits() -> list[tuple[int, int]]:
    """Limit and use, in bytes, of each control group that limits memory. Cached file pages count as
    free: the kernel drops them before it kills."""
    limits = []
    for group in _limiting_groups("memory"):
        limit = first_int([text(group / n) for n in ("memory.max", "memory.limit_in_bytes")])
        used = first_int([text(group / n) for n in ("memory.current", "memory.usage_in_bytes")])
        cached = line(group / "memory.stat", "inactive_file").split()
        if limit is not None and limit < 1 << 60:  # version 1 writes "no limit" as a huge number
            limits.append((limit, (used or 0) - (first_int(cached[1:]) or 0)))
    return limits


def status_bytes(field: str, pid: int | str = "self") -> int:
    """A size in a process's status, such as VmRSS, its resident memory; 0 where it isn't known."""
    kib = first_int(line(Path(f"/proc/{pid}/status"), f"{field}:").split()[1:2])
    return (kib or 0) * 1024


def memory_file_bytes() -> int:
    """Memory of the files in memory (memfd, tmpfs) that this process has open, and of the System V
    segments that it made, without their mapped pages, which its resident memory counts."""
    sizes: dict[tuple[object, ...], int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status, target = os.fstat(int(name)), os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(("/memfd:", "/dev/shm/")):
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    for fields in map(str.split, (text(Path("/proc/sysvipc/shm")) or "").splitlines()[1:]):
        if int(fields[4]) == os.getpid():  # key, id, permissions, size, creator, …, rss, swap
            sizes["segment", fields[1]] = int(fields[14])
    return max(0, sum(sizes.values()) - status_bytes("RssShmem"))


def text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def line(path: Path, start: str) -> str:
    """The first line that begins with `start`, or an empty string."""
    lines = (text(path) or "").splitlines()
    return next((each for each in lines if each.startswith(start)), "")


class Usage(NamedTuple):
    """Resources used by processes: CPU seconds, and the number of involuntary context switches."""

    cpu_s: float
    ctx_switch_invol: int


def usage() -> Usage:
    """Usage of this process and its descendants that have been waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Usage(
        sum(each.ru_utime + each.ru_stime for each in both), sum(each.ru_nivcsw for each in both)
    )


def ticks(start: str) -> list[int]:
    """The times of /proc/stat's first line that begins with `start`: user, nice, system, idle,
    iowait, irq, softirq, steal. Empty where it has fewer."""
    times = [int(field) for field in line(Path("/proc/stat"), start).split()[1:9]]
    return times if len(times) == 8 else []


def first_int(texts: Iterable[str | None]) -> int | None:
    return next((int(each) for each in texts if each and each.isdigit()), None)


# Instruction sets and caches of a processor: two processors with one name may differ in both.

CPUINFO = Path("/proc/cpuinfo")
CACHES = CPUS / "cpu0/cache"
FLAGS = ("flags", "Features")
"""Names of the line with the instruction sets: on x86, and on ARM."""
VECTORS = re.compile(
    r"sse|ssse|avx|amx|fma|f16c|bmi|popcnt|vaes|vpclmul|gfni|asimd|sve|sme|i8mm|bf16|fphp"
)
"""Prefixes of the flags by which kernels are chosen. Other flags come and go with updates of the
system and of the microcode."""
MICROARCHITECTURE = (
    "vendor_id", "cpu family", "model\t", "CPU implementer", "CPU variant", "CPU part",
)  # fmt: skip


def instruction_sets() -> str | None:
    """The vector instruction sets in alphabetical order; None if the system names none."""
    words = next(filter(None, (_cpu_field(name) for name in FLAGS)), "").split()
    return " ".join(sorted({word for word in words if VECTORS.match(word)})) or None


def microarchitecture() -> list[str]:
    """Vendor, family and model, and the level, type and size of each cache of the first core."""
    caches = [
        " ".join(text(index / name) or "" for name in ("level", "type", "size"))
        for index in sorted(CACHES.glob("index[0-9]*"))
    ]
    return [*map(_cpu_field, MICROARCHITECTURE), *caches]


def _cpu_field(name: str) -> str:
    return line(CPUINFO, name).partition(":")[2].strip()
