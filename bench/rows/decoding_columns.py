"""What follows from the columns of a row about decoding. docs/decoding.md explains them."""

from collections.abc import Mapping
from typing import Any

KV_AGREE, KV_SLACK_BYTES, READ_AGREE_PCT = 1.05, 1 << 20, 5
HALVES = {"float64": 4, "float32": 2, "bfloat16": 1, "float16": 1}
"""Number format → its size in 16 bits."""


def input_words(row: Mapping[str, Any]) -> list[str]:
    """Labels in tables for a row whose inputs are not a task's unchanged inputs, each asked once,
    in its prompt."""
    filled = ["inputs filled to the length"] if row.get("filled") else []
    after = ["question after the cache is made"] if row.get("question") else []
    return [*filled, *after, *([f"{row['turns']:.0f} turns"] if row.get("turns") else [])]


def kv_ratio_16bit(columns: Mapping[str, Any]) -> float | None:
    """The bytes that a cache holds / those of the keys and values of all tokens in 16 bits, in
    which most models run: against float32 numbers a quantised cache looks half as large."""
    held, full = columns.get("kv_bytes_held"), columns.get("kv_bytes_full")
    return HALVES[columns["dtype"]] * held / full if held is not None and full else None


def kv_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether a cache's resident memory is at most 5 % above the bytes that it reports as held:
    storage kept for growth isn't resident. None where either isn't known."""
    held, resident = columns.get("kv_bytes_held"), columns.get("kv_bytes_resident")
    if held is None or resident is None:
        return None
    return bool(resident <= KV_AGREE * held + KV_SLACK_BYTES)


def kv_read_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether a cache reports the bytes that a step read of it as they were counted, to 5 %. None
    where they weren't counted."""
    reported = columns.get("kv_read_reported_pct")
    return None if reported is None else bool(abs(reported - 100) <= READ_AGREE_PCT)
