"""The vector widths for which the native source can be compiled, those of this CPU, and the
compiler. Imports no torch."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from methods.parts.parameters import check_choice

VARIABLE = "BENCH_KERNELS"
"""Environment variable: a lower width than the widest, to test it or to compare."""


@dataclass(frozen=True)
class Width:
    """A vector width.

    name     as in `kernel_used`
    machine  `platform.machine()`
    needs    flags that /proc/cpuinfo lists for such a CPU
    flags    flags of the compiler
    extras   instructions that are used if the CPU lists them, with the compiler's flag
    bf16     the member of `extras` that multiplies bfloat16; float32 and 8-bit products run
             everywhere
    """

    name: str
    machine: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]
    extras: dict[str, str] = field(default_factory=dict)
    bf16: str | None = None

    def on(self, listed: Iterable[str]) -> Width:
        """This width with the flags of those extras that a CPU lists."""
        extras = {name: flag for name, flag in self.extras.items() if name in set(listed)}
        return Width(
            self.name,
            self.machine,
            self.needs,
            (*self.flags, *extras.values()),
            extras,
            self.bf16 if self.bf16 in extras else None,
        )


AVX2 = ("-mavx2", "-mfma", "-mbmi2", "-mpopcnt", "-mlzcnt")
WIDTHS = (
    Width(
        "avx512",
        "x86_64",
        ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "bmi2", "popcnt", "abm"),
        (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        {
            "avx512_vnni": "-mavx512vnni",
            "avx512_bf16": "-mavx512bf16",
            "amx_tile": "-mamx-tile",
            "amx_bf16": "-mamx-bf16",
        },
        "avx512_bf16",
    ),
    Width(
        "avx2",
        "x86_64",
        ("avx2", "fma", "bmi2", "popcnt", "abm"),
        AVX2,
        {"avx_vnni": "-mavxvnni"},
    ),
    Width("neon", "aarch64", ("asimd",), (), {"asimddp": "-march=armv8.2-a+dotprod"}),
)
"""The widest first."""


def available() -> list[Width]:
    """The widths that this CPU has, the widest first."""
    machine, listed = platform.machine(), cpu_flags()
    return [w.on(listed) for w in WIDTHS if w.machine == machine and listed.issuperset(w.needs)]


def chosen() -> Width | str:
    """The widest, or the one that BENCH_KERNELS names; or the reason why there is none. Raises
    ValueError where BENCH_KERNELS names no width of this CPU."""
    widths = available()
    wanted = os.environ.get(VARIABLE)
    if wanted:
        check_choice(VARIABLE, wanted, [w.name for w in widths])
    if not widths:
        names = ", ".join(w.name for w in WIDTHS)
        return f"this CPU ({platform.machine()}) has none of {names}"
    return next(w for w in widths if wanted in (None, "", w.name))


def compiler() -> list[str] | str:
    """The command of the C++ compiler: $CXX, or the first in PATH; or a line with the reason if
    there is none."""
    given = os.environ.get("CXX", "")
    names = [given] if given else ["g++", "c++", "clang++"]
    found = next((shlex.split(name) for name in names if shutil.which(shlex.split(name)[0])), None)
    return found or f"no compiler ({' or '.join(names)} is not in PATH)"


def cpu_flags() -> set[str]:
    """The instruction sets that Linux lists for this CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    names = ("flags", "Features")  # on x86-64, on ARM
    return next(({*line.split(":")[1].split()} for line in lines if line.startswith(names)), set())
