"""The attention module from which a method's call comes, for functions of other packages that take
it (methods/hf.py).

Calls of methods don't contain it: it is recorded where transformers calls the harness.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from methods.base import AttentionCall, Unsupported

HARNESS = "bench"
"""The name under which the harness registers the attention function that leads to methods."""

_module: ContextVar[Any] = ContextVar("module", default=None)


def current() -> Any:
    """The module whose attention is being computed; None outside transformers' interface, or if
    `note_modules` wasn't called."""
    return _module.get()


def note_modules() -> None:
    """Makes the harness's attention function record the module that calls it."""
    function = ALL_ATTENTION_FUNCTIONS.get(HARNESS)
    if function is not None and not isinstance(function, Noting):
        AttentionInterface.register(HARNESS, Noting(function))


@dataclass(frozen=True)
class Noting:
    """An attention function that records its module."""

    function: Any

    def __call__(self, module: Any, *arguments: Any, **settings: Any) -> Any:
        token = _module.set(module)
        try:
            return self.function(module, *arguments, **settings)
        finally:
            _module.reset(token)


class Missing(Unsupported, AttributeError):
    """Raised for an attribute that a `StandIn` doesn't have: `hasattr` is False, other use
    fails."""


class StandIn:
    """Stands in for an attention module, with its known attributes, where the family passes
    none."""

    def __init__(self, attn: str, query: Tensor, key: Tensor, call: AttentionCall) -> None:
        self.attn, self.layer_idx, self.scaling = attn, call.layer, call.scale
        self.is_causal, self.training = call.sequence.causal, torch.is_grad_enabled()
        self.num_key_value_groups = query.shape[1] // key.shape[1]

    def __getattr__(self, name: str) -> Any:
        raise Missing(
            f"{self.attn} reads {name!r} of the model's attention module; this model computes "
            "attention otherwise than through transformers' interface, and hands none over"
        )
