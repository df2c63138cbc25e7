"""Words and signs that tables, figures and the leaderboard share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.rows.columns import FUSED_KERNEL
from bench.rows.row_facts import kernel_names
from bench.status import Status

NONE = "–"
"""A cell of a table with nothing to show."""
AT_CHANCE = "‡"
"""Follows a score that isn't clearly above the best constant answer's."""
ENDED: dict[str, str] = {
    Status.OOM_HOST: "out of memory",
    Status.OOM_DEVICE: "out of GPU memory",
    Status.TIMEOUT: "out of time",
    Status.ERROR: "failed",
    Status.UNSUPPORTED: "not supported",
    Status.SKIPPED: "skipped",
    Status.RETIRED: "retired",
}
"""Status of a cell without a result → its description for readers."""
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""Instruction sets of a row → the vectors that they are of, widest first."""
NEARLY_FULL = 0.95
"""Of a length: what inputs have that a table gives as that length."""


def vectors(row: Mapping[str, Any]) -> str:
    """The widest vectors of a row's processor, and AMX's tiles; empty where the row does not record
    them."""
    sets = (row["instruction_sets"] or "").split()
    widest = next((name for flag, name in VECTORS.items() if flag in sets), "")
    return f"{widest}, AMX" if "amx_bf16" in sets else widest


def tokens_read(row: Mapping[str, Any]) -> str:
    """The mean number of tokens of a row's inputs, if it is less than the row's length."""
    seen, length = row["tokens_seen_mean"] or row["timed_tokens"], row["length"]
    short = seen is not None and seen < NEARLY_FULL * length
    return f"{seen:,.0f} of {length:,}" if short else f"{length:,}"


def signed(value: float, *ends: float) -> str:
    """A difference in tenths with its sign, and the ends of its interval if given."""
    text, *others = (f"{number:+.1f}".replace("-", "−") for number in (value, *ends))
    return f"{text} ({' … '.join(others)})" if others else text


def own_engine(row: Mapping[str, Any]) -> str:
    """The engine of the ratio to exact attention by the same engine, as one word such as native;
    empty if it is vanilla's engine, so that the ratio is to vanilla, or without such a ratio."""
    if row.get("engine_ratio") is None or row.get("engine_kernel") == FUSED_KERNEL:
        return ""
    return kernel_names(row.get("engine_kernel"), words=1)
