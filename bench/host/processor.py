"""What a processor can run and how it caches: two with one name may differ in both."""

from __future__ import annotations

import re
from pathlib import Path

from bench.host import linux

CPUINFO = Path("/proc/cpuinfo")
CACHES = linux.CPUS / "cpu0/cache"
FLAGS = ("flags", "Features")
"""The line of the instruction sets: on x86, and on ARM."""
VECTORS = re.compile(
    r"sse|ssse|avx|amx|fma|f16c|bmi|popcnt|vaes|vpclmul|gfni|asimd|sve|sme|i8mm|bf16|fphp"
)
"""Beginnings of the flags that kernels are chosen by. Others come and go with updates of the system
and of the microcode."""
MICROARCHITECTURE = (
    "vendor_id", "cpu family", "model\t", "CPU implementer", "CPU variant", "CPU part",
)  # fmt: skip


def instruction_sets() -> str | None:
    """The vector instruction sets in alphabetical order; None where the system names none."""
    words = next(filter(None, (_field(name) for name in FLAGS)), "").split()
    return " ".join(sorted({word for word in words if VECTORS.match(word)})) or None


def microarchitecture() -> list[str]:
    """Vendor, family and model, and the level, type and size of each cache of the first core."""
    caches = [
        " ".join(linux.text(index / name) or "" for name in ("level", "type", "size"))
        for index in sorted(CACHES.glob("index[0-9]*"))
    ]
    return [*map(_field, MICROARCHITECTURE), *caches]


def _field(name: str) -> str:
    return linux.line(CPUINFO, name).partition(":")[2].strip()
