"""The columns of a row that are about decoding: the time of each new token, what the cache of keys
and values costs, and how far predictions drift along an answer. docs/decoding.md explains them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

KV_AGREE, KV_SLACK_BYTES, READ_AGREE_PCT = 1.05, 1 << 20, 5
HALVES = {"float64": 4, "float32": 2, "bfloat16": 1, "float16": 1}
"""Number format → its size in 16 bits."""


class DecodingColumns(TypedDict, total=False):
    """N: `new_tokens`."""

    new_tokens: Annotated[int | None, "tokens decoded after each prompt; null: not measured"]
    question: Annotated[str | None, "after: read once the KV cache is made; null: in the prompt"]
    turns: Annotated[int | None, "questions on each text, one after the other; null: one"]
    tokens_per_s: Annotated[float | None, "new tokens of all rows in a second, after the first"]
    base_tokens_per_s: Annotated[float | None, "vanilla's"]
    # the cache of keys and values
    kv_bytes_held: Annotated[int | None, "storage of all that the cache holds after the last token"]
    kv_bytes_held_prefill: Annotated[int | None, "after the prompt"]
    kv_bytes_resident: Annotated[int | None, "resident memory with it less that without it"]
    kv_bytes_read_per_token: Annotated[int | None, "bytes of it that each new token of a row read"]
    kv_read_reported_pct: Annotated[float | None, "of bytes counted in a step; null: not counted"]
    kv_bytes_full: Annotated[int | None, "keys and values of all tokens: 2·L·G·d·n·B numbers"]
    kv_entries: Annotated[float | None, "entries of each key head, the mean over layers"]
    base_kv_bytes_held: Annotated[int | None, "vanilla's storage after the last token"]
    base_kv_bytes_held_prefill: Annotated[int | None, "after the prompt"]
    base_kv_bytes_resident: Annotated[int | None, "vanilla's resident memory of its cache"]
    base_kv_bytes_read_per_token: Annotated[int | None, "bytes that vanilla read"]
    kv_held_ratio: Annotated[float | None, "bytes held, method / vanilla"]
    kv_read_ratio: Annotated[float | None, "bytes read for a new token, method / vanilla"]
    kv_ratio_16bit: Annotated[float | None, "bytes held / keys and values of all tokens in 16 bits"]
    kv_reason: Annotated[str | None, "why there is no figure of the cache"]
    # fidelity along vanilla's greedy answer
    decode_kl_mean: Annotated[float | None, "KL divergence from vanilla, mean over N tokens"]
    decode_kl_first_quarter: Annotated[float | None, "over the first quarter of them"]
    decode_kl_last_quarter: Annotated[float | None, "over the last quarter"]
    decode_top1_agree: Annotated[float | None, "share of equal first choices, 0 to 1"]
    decode_top1_first_quarter: Annotated[float | None, "in the first quarter, 0 to 1"]
    decode_top1_last_quarter: Annotated[float | None, "in the last quarter, 0 to 1"]


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
