"""Accepted values of hyper-parameters. The annotation of the field declares them once: a type, a
`Literal` of choices, or `Annotated` with a `Range` or a `Text`. A method's class checks them
(`check_fields`), and so does the composition of a request. That reads annotations from the source,
so the arguments of a `Range` or a `Text` must be literals."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from methods.parts.workload import Workload

TYPES = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


@dataclass(frozen=True)
class Range:
    """Numbers from `least`, or greater than `above`, up to `most`; with `step`, only every
    step-th."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    step: int | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.step is None or (value - (self.least or 0)) % self.step == 0)
        )

    def __str__(self) -> str:
        if self.step is not None:
            first = self.least or 0
            return ", ".join(f"{first + i * self.step:g}" for i in range(3)) + ", …"
        if self.least is not None:
            return f"{self.least:g} " + ("or more" if self.most is None else f"to {self.most:g}")
        ends = (("above", self.above), ("at most", self.most))
        return " and ".join(f"{name} {end:g}" for name, end in ends if end is not None)


@dataclass(frozen=True)
class Text:
    """Texts that `pattern` matches in full; `such_as` describes them in messages."""

    pattern: str
    such_as: str

    def __contains__(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.such_as


Positive = Annotated[int, Range(least=1)]
NonNegative = Annotated[int, Range(least=0)]
TokenCount = Annotated[float, Range(least=0, most=0.999)] | NonNegative
"""Tokens: a share of the input's, below 1 (0.25), or a number (512)."""
Budget = (
    Annotated[float, Range(above=0, most=1)]
    | Annotated[int, Range(least=2)]
    | Annotated[str, Text(r"\d+(\.\d+)?(KiB|MiB|GiB)", "bytes such as '64MiB'")]
)
"""A share of the prompt's tokens (0.25; 1 is all of them), entries for each KV head of a layer
(512), or the bytes of the keys and values of a whole model and batch ("64MiB")."""
LayerRanges = (
    Annotated[str, Text(r"all|\d+(-\d+)?(,\d+(-\d+)?)*", "'all', or such as '16-31' or '0,2,8-11'")]
    | NonNegative
)
"""Which layers: all, one by its index, or several."""
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def tokens_of(count: TokenCount, n: int) -> int:
    """The number of tokens, out of n, that a count or a share gives."""
    return round(count * n) if count < 1 else int(count)


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


def check_fields(method: object) -> None:
    """Raises ValueError for a field of a dataclass whose value its annotation doesn't accept."""
    for name, hint in get_type_hints(type(method), include_extras=True).items():
        value = getattr(method, name)
        if not accepts(hint, value):
            raise ValueError(f"{name} is {value!r}; it takes {described(hint)}")


def accepts(hint: Any, value: Any) -> bool:
    """Whether an annotation accepts a value. Annotations of types outside TYPES accept all
    values."""
    match get_origin(hint) or hint:
        case origin if origin in (Union, UnionType):
            return any(accepts(part, value) for part in get_args(hint))
        case origin if origin is Literal:
            return any(type(value) is type(p) and value == p for p in get_args(hint))
        case origin if origin is Annotated:
            kind, limit, *_ = get_args(hint)
            return accepts(kind, value) and value in limit
        case origin if origin is float:
            most = sys.float_info.max
            return type(value) in (int, float) and -most <= value <= most
        case origin if origin in TYPES:
            return type(value) is origin
    return True


def described(hint: Any) -> str:
    """Text that describes the values that an annotation accepts."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(described, get_args(hint)))
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) is Annotated:
        kind, limit, *_ = get_args(hint)
        return str(limit) if isinstance(limit, Text) else f"{described(kind)}, {limit}"
    return TYPES.get(hint, str(hint))


def check_choice(name: str, value: object, accepted: Sequence[object]) -> None:
    """Raises ValueError for a value that isn't accepted; for values that aren't fields or depend on
    one."""
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(map(repr, accepted))}")


def in_layer_ranges(ranges: LayerRanges, layer: int) -> bool:
    """Whether these layers include this one."""
    spans = [[int(end) for end in s.split("-")] for s in str(ranges).split(",") if s != "all"]
    return not spans or any(span[0] <= layer <= span[-1] for span in spans)
