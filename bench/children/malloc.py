"""How a child's allocator is set. A memory child gives freed pages back to the kernel at once, or
an earlier peak hides the next one. A timing child keeps them: whether glibc does so by itself hangs
on where blocks came to lie when the process began, and pages that are fetched again in each call
made one cell 30 % slower in some processes than in others. glibc only; other allocators do as they
do."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4  # malloc.h
LARGE_BYTES = 65536
NEVER = -1


def give_back_at_once() -> None:
    _set({M_MMAP_THRESHOLD: LARGE_BYTES, M_TRIM_THRESHOLD: LARGE_BYTES, M_TOP_PAD: 0})


def keep() -> None:
    _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: NEVER})


def _set(options: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in options.items():
            mallopt(option, value)
