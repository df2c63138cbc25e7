"""Short texts about a row: the kernels that ran, whether the engine alone made it faster, and the
longest input that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.request.schema import MEASURES
from bench.status import Status, Verdict

ENGINE_ONLY = "by its engine only"
PERHAPS = "perhaps "
"""Before ENGINE_ONLY where the ratio to exact attention by the same engine is undecided."""
NEXT = re.compile(r"; (?=native |torch\b)")


def engine_only(row: Mapping[str, Any]) -> str:
    """ENGINE_ONLY where a row is faster than vanilla and not than exact attention by its own
    engine; empty otherwise, and where either ratio is missing."""
    own = row.get("engine_verdict")
    if row.get("lat_verdict") != Verdict.FASTER or own in (None, Verdict.FASTER):
        return ""
    return f"{PERHAPS}{ENGINE_ONLY}" if own == Verdict.UNDECIDED else ENGINE_ONLY


def kernels(used: str | None) -> list[tuple[str, str]]:
    """The kernels of a `kernel` column, each with the reason that follows it, if any."""
    parts = (part.partition(" (") for part in NEXT.split(used or "") if part)
    return [(name, reason.removesuffix(")")) for name, _, reason in parts]


def kernel_names(used: str | None, words: int | None = None) -> str:
    """The kernels without reasons, each once, at most `words` words of each: with one, native or
    torch. Empty where none is known."""
    names = (" ".join(name.split()[:words]) for name, _ in kernels(used))
    return ", ".join(dict.fromkeys(names))


# The longest input that fits, as text.


def longest_input(row: Mapping[str, Any]) -> str | None:
    """Such as 14,848 tokens or, where time and not memory ended the search, at least 65,536 tokens
    in time; "in a training step" follows where these were tried. None for a row that didn't search.
    """
    if row.get("max_length_fit") is None:
        return None
    found = f"{row['max_length_fit']:,} tokens"
    found = f"at least {found} in time" if is_lower_bound(row) else found
    plan = MEASURES.get(row.get("measure") or "")
    return f"{found}, in a training step" if plan and plan.training else found


def is_lower_bound(row: Mapping[str, Any]) -> bool:
    """Whether a longer input ran into the deadline, so that it may have fitted."""
    return bool(row.get("max_length_end") == Status.TIMEOUT)
