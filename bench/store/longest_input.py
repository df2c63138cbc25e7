"""The longest input that fits, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.request.schema import MEASURES
from bench.status import Status


def longest_input(row: Mapping[str, Any]) -> str | None:
    """Such as 14,848 tokens or, where time and not memory ended the search, at least 65,536 tokens
    in time; "in a training step" follows where these were tried. None for a row that didn't search.
    """
    if row.get("max_length_fit") is None:
        return None
    found = f"{row['max_length_fit']:,} tokens"
    found = f"at least {found} in time" if is_lower_bound(row) else found
    return f"{found}, in a training step" if of_training(row) else found


def is_lower_bound(row: Mapping[str, Any]) -> bool:
    """Whether a longer input ran into the deadline, so that it may have fitted."""
    return bool(row.get("max_length_end") == Status.TIMEOUT)


def of_training(row: Mapping[str, Any]) -> bool:
    """Whether training steps were tried, and not forwards."""
    plan = MEASURES.get(row.get("measure") or "")
    return bool(plan and plan.training)
