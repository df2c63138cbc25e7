"""`budget=`, short for `method.budget=`: the size of a method's KV cache."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.errors import RequestError
from bench.request import plugins

NAME, PARAMETER = "budget", "method.budget"
ACCEPTED = (
    "the budget of a KV cache is such as 0.25 (of the prompt's tokens), 512 (entries of each KV "
    "head and layer) or 64MiB (of the whole model); the time of a sweep is time=30m"
)
_VALUE = re.compile(r"(\d+\.?\d*|\.\d+)(e-?\d+)?([KMG]iB)?")


def as_parameter(override: str) -> str:
    """An override with `budget=` as `method.budget=`, and any other unchanged. Raises RequestError
    for values that are no budget, such as the time of a sweep."""
    name, _, text = override.partition("=")
    if name.lstrip("+") != NAME:
        return override
    if not all(_VALUE.fullmatch(value.strip(" '\"")) for value in text.split(",")):
        raise RequestError(f"{override} is not accepted: {ACCEPTED}")
    return f"{PARAMETER}={text}"


def missing(methods: Sequence[str]) -> RequestError:
    """The error for a budget where none of the methods has one."""
    having = sorted(name for name, conf in plugins.usable("method").items() if NAME in conf)
    return RequestError(
        f"method={','.join(methods)} has no budget: a KV cache of all keys and values; "
        f"methods with one: {', '.join(having) or 'none'}"
    )
