"""Short names of parameters: `press=NAME`, `press.compression_ratio=0.5` and `press.window_size=8`
of method=kvpress; `attn=NAME` and `attn.module=PACKAGE` of method=hf."""

from __future__ import annotations

from collections.abc import Sequence

from bench.errors import unknown

PARAMETERS = {
    "press": "press",
    "press.compression_ratio": "compression_ratio",
    "attn": "attn",
    "attn.module": "module",
}
"""Short name → the method's parameter."""
OPTIONS = "press."
"""Other names that begin so are arguments of a press, which are in the parameter `options`."""


def as_parameters(overrides: Sequence[str]) -> list[str]:
    """The overrides with the method's parameters under their own names. Raises RequestError."""
    others, options = [], []
    for override in overrides:
        key, equals, value = override.partition("=")
        if key in PARAMETERS:
            others.append(f"method.{PARAMETERS[key]}{equals}{value}")
        elif key.startswith(OPTIONS):
            options.append(f"{key.removeprefix(OPTIONS)}={value}")
        elif key.startswith("attn."):
            raise unknown("name", key, PARAMETERS)
        else:
            others.append(override)
    return [*others, *([f"method.options='{', '.join(options)}'"] if options else [])]
