"""How much of a decoder's cache a method may keep."""

from __future__ import annotations

from typing import Annotated

from methods.parts.parameters import Range, Text
from methods.parts.workload import Workload

Budget = (
    Annotated[float, Range(above=0, most=1)]
    | Annotated[int, Range(least=2)]
    | Annotated[str, Text(r"\d+(\.\d+)?(KiB|MiB|GiB)", "bytes such as '64MiB'")]
)
"""A share of the prompt's tokens (0.25; 1 is all of them), entries for each KV head of a layer
(512), or the bytes of the keys and values of a whole model and batch ("64MiB")."""

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def entries(budget: Budget, workload: Workload, n: int) -> int:
    """How many entries each KV head of a layer may hold for a prompt of n tokens. A budget in bytes
    is divided equally among the rows of the workload's batch, its layers and KV heads. Only keys
    and values count, not the entries' tokens or room to grow."""
    if isinstance(budget, str):
        return int(float(budget[:-3]) * UNITS[budget[-3:]]) // workload.bytes_per_entry()
    return round(budget * n) if budget <= 1 else int(budget)


def shortage(budget: Budget, workload: Workload, least: int) -> str | None:
    """Why the budget is too small for a method that needs at least this many entries, or None."""
    allowed = entries(budget, workload, workload.length)
    if allowed >= least:
        return None
    return (
        f"budget={budget} is {allowed:,} of {workload.length:,} tokens in each KV head of a layer; "
        f"it needs at least {least:,}"
    )
