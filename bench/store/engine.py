"""A row's engine: which kernels ran, and whether the engine alone made it faster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.status import Verdict
from bench.store.columns import FUSED_KERNEL

ENGINE_ONLY = "by its engine only"
PERHAPS = "perhaps "
"""Before ENGINE_ONLY where the ratio to exact attention by the same engine is undecided."""
NEXT = re.compile(r"; (?=native |torch\b)")


def engine_only(row: Mapping[str, Any]) -> str:
    """ENGINE_ONLY where a row is faster than vanilla and not than exact attention by its own
    engine; empty otherwise, and where either ratio is missing."""
    own = row.get("ratio_same_engine_verdict")
    if row.get("verdict") != Verdict.FASTER or own in (None, Verdict.FASTER):
        return ""
    return f"{PERHAPS}{ENGINE_ONLY}" if own == Verdict.UNDECIDED else ENGINE_ONLY


def own_engine(row: Mapping[str, Any]) -> str:
    """In a word the engine of the ratio to exact attention by the same engine, such as native;
    empty where it is vanilla's, and the ratio that to vanilla, or where there is none."""
    if row.get("ratio_same_engine") is None or row.get("engine_kernel") == FUSED_KERNEL:
        return ""
    return kernel_names(row.get("engine_kernel"), words=1)


def kernels(used: str | None) -> list[tuple[str, str]]:
    """The kernels of a `kernel` column, each with the reason that follows it, if any."""
    parts = (part.partition(" (") for part in NEXT.split(used or "") if part)
    return [(name, reason.removesuffix(")")) for name, _, reason in parts]


def kernel_names(used: str | None, words: int | None = None) -> str:
    """The kernels without reasons, each once, at most `words` words of each: with one, native or
    torch. Empty
    where none is known."""
    names = (" ".join(name.split()[:words]) for name, _ in kernels(used))
    return ", ".join(dict.fromkeys(names))
