"""Short facts about a row: the kernels that ran, whether only the engine made it faster, its
inputs, the longest input that fits, and whether its KV cache reports the measured bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.request.schema import MEASURES
from bench.status import Status, Verdict

KV_AGREE, KV_SLACK_BYTES, READ_AGREE_PCT = 1.05, 1 << 20, 5
HALVES = {"float64": 4, "float32": 2, "bfloat16": 1, "float16": 1}
"""Number format → its size in units of 16 bits."""
ENGINE_ONLY = "by its engine only"
PERHAPS = "perhaps "
"""Prefix of ENGINE_ONLY if the ratio to exact attention on the same engine is undecided."""
NEXT = re.compile(r"; (?=native |torch\b)")


def engine_only(row: Mapping[str, Any]) -> str:
    """ENGINE_ONLY if a row is faster than vanilla but not faster than exact attention on its own
    engine; empty otherwise, and if either ratio is missing."""
    own = row.get("engine_verdict")
    if row.get("lat_verdict") != Verdict.FASTER or own in (None, Verdict.FASTER):
        return ""
    return f"{PERHAPS}{ENGINE_ONLY}" if own == Verdict.UNDECIDED else ENGINE_ONLY


def kernels(used: str | None) -> list[tuple[str, str]]:
    """The kernels of a `kernel` column, each with the reason that follows it, if any."""
    parts = (part.partition(" (") for part in NEXT.split(used or "") if part)
    return [(name, reason.removesuffix(")")) for name, _, reason in parts]


def kernel_names(used: str | None, words: int | None = None) -> str:
    """The kernels without reasons, each once, at most `words` words of each: with one word, native
    or torch. Empty if none is known."""
    names = (" ".join(name.split()[:words]) for name, _ in kernels(used))
    return ", ".join(dict.fromkeys(names))


# The inputs, and the longest one that fits, as text.


def input_words(row: Mapping[str, Any]) -> list[str]:
    """Labels in tables for a row whose inputs differ from a task's unchanged inputs with one
    question each, in the prompt."""
    filled = ["inputs filled to the length"] if row.get("filled") else []
    after = ["question after the cache is made"] if row.get("question") else []
    return [*filled, *after, *([f"{row['turns']:.0f} turns"] if row.get("turns") else [])]


def longest_input(row: Mapping[str, Any]) -> str | None:
    """Text such as 14,848 tokens or, if time and not memory ended the search, at least 65,536
    tokens in time; with "in a training step" if these were tested. None for a row without a search.
    """
    if row.get("max_length_fit") is None:
        return None
    found = f"{row['max_length_fit']:,} tokens"
    found = f"at least {found} in time" if is_lower_bound(row) else found
    plan = MEASURES.get(row.get("measure") or "")
    return f"{found}, in a training step" if plan and plan.training else found


def is_lower_bound(row: Mapping[str, Any]) -> bool:
    """Whether a longer input reached the deadline, so that it may have fitted."""
    return bool(row.get("max_length_end") == Status.TIMEOUT)


# The cache of keys and values.


def kv_ratio_16bit(columns: Mapping[str, Any]) -> float | None:
    """The bytes that a cache holds / those of the keys and values of all tokens in 16 bits, in
    which most models run: relative to float32, a quantised cache would seem half as large."""
    held, full = columns.get("kv_bytes_held"), columns.get("kv_bytes_full")
    return HALVES[columns["dtype"]] * held / full if held is not None and full else None


def kv_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether a cache's resident memory is at most 5 % above the bytes that it reports as held:
    storage kept for growth isn't resident. None if either is unknown."""
    held, resident = columns.get("kv_bytes_held"), columns.get("kv_bytes_resident")
    if held is None or resident is None:
        return None
    return bool(resident <= KV_AGREE * held + KV_SLACK_BYTES)


def kv_read_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether the bytes that a cache reports as read by a step equal the counted ones within 5 %.
    None if they weren't counted."""
    reported = columns.get("kv_read_reported_pct")
    return None if reported is None else bool(abs(reported - 100) <= READ_AGREE_PCT)
