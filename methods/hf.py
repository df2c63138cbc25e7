"""Any function registered with transformers' attention interface, unchanged: transformers' own and
those of other packages (`AttentionInterface.register`).

It is called as a model's attention module calls it: with that module, the mask from the mask
function of the same name, scale, dropout, window, soft cap and sinks. It reads prompts and new
tokens, and all keys and values are kept. Families that don't compute attention through the
interface pass no module; there the function gets a `StandIn`. Calls of methods don't contain the
module: it is recorded where transformers calls the harness.

Nothing is downloaded: kernels of the hub (ORG/NAME) are rejected.

The functions' code: huggingface/transformers (Apache-2.0), or the package that registers them.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    causal_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from methods.base import AttentionCall, Feature, Method, Unsupported, Workload
from methods.parts.kv_cache import FullCache
from methods.parts.parameters import Text

HARNESS = "bench"
"""The name under which the harness registers the attention function that leads to methods."""
EXACT = {
    "eager": frozenset(Feature),
    "sdpa": frozenset({Feature.WINDOW}),
}
"""transformers' own functions, and what they apply beside exact attention."""
BIAS = "transformers' attention functions take no position bias or multiplicities from here"
UNUSABLE = {
    "flash_attention": "it asks the model's config for its kernel, which names the harness's own",
    "flex_attention": "torch.compile, which it needs, replaces functions that are measured with",
    "paged": "it is for transformers' own continuous batching",
}
"""Functions of transformers, by how their names begin, that can't run here."""
Name = Annotated[str, Text(r"[^/]+", "such as 'sdpa'; a kernel of the hub (a/b) isn't loaded")]
Module = Annotated[str, Text(r"\w+(\.\w+)*(:\w+)?", "such as 'their_pkg' or 'their_pkg:register'")]

_module: ContextVar[Any] = ContextVar("module", default=None)


@dataclass(frozen=True)
class HF(Method):
    """attn    the name under which the function is registered
    module  the installed module whose import registers the function, or a module and a function of
            it that does; None: the function is transformers' own
    """

    attn: Name = "sdpa"
    module: Module | None = None
    _masks: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def honours(self) -> frozenset[Feature]:  # type: ignore[override]
        """A window, for another package's function: its mask function receives it."""
        return EXACT.get(self.attn, EXACT["sdpa"])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Queries of the last t tokens [B, H, t, d], key and value [B, G, n, d] → [B, H, t, d]."""
        if call.bias is not None or call.sequence.log_multiplicity is not None:
            raise Unsupported(BIAS)
        module = current()
        if module is None:
            module = StandIn(self.attn, query, key, call)
        given = {"sliding_window": call.window, "softcap": call.softcap, "s_aux": call.sinks}
        output, _ = self._function(module)(
            module,
            query,
            key,
            value,
            self._mask(query, key, call, getattr(module, "config", None)),
            dropout=call.dropout,
            scaling=call.scale,
            **{name: value for name, value in given.items() if value is not None},
        )
        if output.shape != (len(query), query.shape[2], query.shape[1], value.shape[3]):
            raise Unsupported(
                f"{self.attn} gives {tuple(output.shape)}; queries {tuple(query.shape)} ask for "
                "[batch, tokens, heads, size]"
            )
        read: Tensor = output.transpose(1, 2)
        return read

    def kv_cache(self, workload: Workload) -> FullCache:
        return FullCache(self.attend, self.attend)

    def exact_limit(self) -> Method | None:
        return self if self.attn in EXACT else None

    def unsupported(self, workload: Workload) -> str | None:
        if workload.position_bias:
            return BIAS
        for name, reason in UNUSABLE.items():
            if self.attn.startswith(name):
                return f"attn={self.attn}: {reason}"
        if self.module and (problem := imported(self.module)):
            return problem
        known = {"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()} - {HARNESS}
        if self.attn not in known:
            near = difflib.get_close_matches(self.attn, known, 1, 0)[0]
            hint = "" if self.module else "; attn.module=their_pkg imports what registers others"
            return f"no attention function {self.attn!r}; nearest: {near}{hint}"
        note_modules()
        return None

    def _function(self, module: Any) -> Any:
        if self.attn != "eager":
            return ALL_ATTENTION_FUNCTIONS[self.attn]
        own = sys.modules[type(module).__module__]
        return getattr(own, "eager_attention_forward", modeling_llama.eager_attention_forward)

    def _mask(self, query: Tensor, key: Tensor, call: AttentionCall, config: Any) -> Any:
        """The mask as transformers' models build it: once for a forward pass, which begins at layer
        0."""
        if call.layer == 0:
            self._masks.clear()
        which = (id(call.sequence), call.window, query.shape[2], key.shape[2])
        if which not in self._masks:
            self._masks[which] = self._new_mask(query, key, call, config)
        return self._masks[which]

    def _new_mask(self, query: Tensor, key: Tensor, call: AttentionCall, config: Any) -> Any:
        (batch, _, t, _), n, causal = query.shape, key.shape[2], call.sequence.causal
        window = call.window if call.window is not None and call.window < n else None
        valid = None if call.sequence.valid is None else call.sequence.valid[:, -n:]
        if self.attn not in ALL_MASK_ATTENTION_FUNCTIONS:
            if valid is not None or window or 1 < t < n:
                raise Unsupported(
                    f"no mask function is registered as {self.attn!r}: it would read padding, "
                    "tokens beyond a window, or later ones (AttentionMaskInterface.register)"
                )
            return None
        pattern = causal_mask_function if causal else bidirectional_mask_function
        return ALL_MASK_ATTENTION_FUNCTIONS[self.attn](
            batch_size=batch,
            q_length=t,
            kv_length=n,
            q_offset=n - t,
            kv_offset=0,
            mask_function=sliding_window_causal_mask_function(window) if window else pattern,
            attention_mask=valid,
            allow_is_causal_skip=causal,
            allow_is_bidirectional_skip=not causal,
            local_size=window,
            dtype=query.dtype,
            device=query.device,
            config=config,
        )


def imported(module: str) -> str | None:
    """Imports the module that registers a function, or calls the named function of it. Returns the
    reason why that failed, or None."""
    name, _, function = module.partition(":")
    try:
        content = importlib.import_module(name)
        if function:
            getattr(content, function)()
    except Exception as error:  # another package may raise any exception
        line = next(iter(str(error).splitlines()), "")
        return f"attn.module={module}: {type(error).__name__}: {line}"
    return None


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
