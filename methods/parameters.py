"""Checks of hyper-parameters, for `__post_init__`."""

from __future__ import annotations

from collections.abc import Sequence


def check_choice(name: str, value: object, accepted: Sequence[object]) -> None:
    """Raises ValueError where a parameter has none of the accepted values."""
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(map(repr, accepted))}")


def check_least(name: str, value: float | None, least: float) -> None:
    """Raises ValueError where a parameter is given and below `least`."""
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}; the least is {least}")


def in_layer_ranges(ranges: str | int, layer: int) -> bool:
    """Whether "all", one layer, or ranges such as "16-31" or "0,2,8-11" name this layer."""
    try:
        spans = [[int(end) for end in span.split("-")] for span in str(ranges).split(",")]
    except ValueError:
        if ranges == "all":
            return True
        accepted = "'all', a layer, or such as '16-31' or '0,2,8-11'"
        raise ValueError(f"layers is {ranges!r}; it takes {accepted}") from None
    return any(span[0] <= layer <= span[-1] for span in spans)
