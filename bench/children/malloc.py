"""How a memory child's allocator is set: freed pages go back to the kernel at once, or an earlier
peak hides the next one. glibc only; other allocators keep what they keep."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
LARGE_BYTES = 65536


def give_back_at_once() -> None:
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
        mallopt(M_TOP_PAD, 0)
