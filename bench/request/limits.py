"""What a request may ask of this machine: refused before any row is generated or a model is loaded.

The estimates are generous: they refuse what is out of reach by far, and leave what is near the
limit to the run itself, whose end becomes a row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bench.errors import RequestError
from bench.host import host
from bench.units import memory, span

BYTES_PER_TOKEN = 4
"""Memory of a token of a generated row, for most tasks."""
TOKENS_PER_S = 1e6
"""Tokens that one core generates in a second, for most tasks."""


def check_threads(threads: int | None) -> None:
    """Raises RequestError for more threads than this process may use cores."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None and threads > cores:
        raise RequestError(
            f"threads={threads} is not accepted: this process may use {cores} cores; accepted: "
            f"1 to {cores}, null for all"
        )


def generating_s(request: Mapping[str, Any]) -> float:
    """Seconds that the embedded rows of a request take to generate; 0 of another source."""
    return float(request["length"] * _generated(request) / TOKENS_PER_S)


def check_size(request: Mapping[str, Any]) -> None:
    """Raises RequestError for rows or a batch that can't be held in memory here, and for embedded
    rows that can't be generated within the request's deadline."""
    tokens = request["length"] * max(_generated(request), request["batch"])
    size, free = tokens * BYTES_PER_TOKEN, host.available_memory()
    seconds, deadline = generating_s(request), request["deadline_s"]
    if size <= free and seconds <= deadline:
        return
    asked = " ".join(
        f"{name}={request[name]}" for name in ("length", "n", "batch") if request[name] is not None
    )
    raise RequestError(
        f"{asked} would need about {memory(size)} for the tokens alone and {span(seconds)} to "
        f"generate rows; this machine has {memory(free)} free, and deadline_s is {deadline}"
    )


def _generated(request: Mapping[str, Any]) -> int:
    """Rows that are generated."""
    return int(request["n"] or 0) if request["data"]["source"] == "embedded" else 0
