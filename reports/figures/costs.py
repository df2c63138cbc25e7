"""The costs against which figures are drawn."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 / (1 << 20)


class Cost(NamedTuple):
    """A cost of a cell: the column `absolute`, × `scale` in the `unit` of its axis, and the column
    of its `ratio` to vanilla's. `name` is its word in names of figures, `text` that in their
    descriptions; `needs` is the part of a row that contains it."""

    name: str
    text: str
    needs: str
    ratio: str
    absolute: str
    label: str
    unit: str
    scale: float

    @property
    def is_time(self) -> bool:
        return self.unit == "ms"

    @property
    def is_of_entries(self) -> bool:
        """Whether the cost of a cache is the share of entries that it keeps or reads."""
        return self.ratio in ("kv_held_ratio", "kv_read_ratio")


LATENCY = Cost("latency", "latency", "latency", "lat_ratio", "lat_median_ns", "latency", "ms", 1e-6)
MEMORY = Cost(
    "memory", "peak memory", "memory", "mem_ratio", "peak_bytes", "peak memory", "MiB", MIB
)
PROCESS = Cost(
    "process", "the peak memory of the whole process", "memory", "whole_peak_ratio",
    "whole_peak_bytes", "peak memory of the process", "MiB", MIB,
)  # fmt: skip
TPOT = Cost(
    "tpot", "the time per output token", "decoding", "tpot_ratio", "tpot_median_ns",
    "time per output token", "ms", 1e-6,
)  # fmt: skip
KV_HELD = Cost(
    "kv_held", "the bytes that the KV cache holds", "decoding", "kv_held_ratio", "kv_bytes_held",
    "KV bytes held", "MiB", MIB,
)  # fmt: skip
KV_READ = Cost(
    "kv_read", "the KV bytes read for each new token", "decoding", "kv_read_ratio",
    "kv_bytes_read_per_token", "KV bytes read for a token", "MiB", MIB,
)  # fmt: skip
