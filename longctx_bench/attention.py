"""Methods behind transformers' attention interface, in models that transformers itself runs.

Transformers takes a name with a slash for a kernel of the hub and downloads it, so the names here
are `longctx:NAME`. Masks stay [B, n]: a method gets padding, causality and windows as
`SequenceInfo` and `AttentionCall` have them, and n×n masks are never built.

Shapes: B batch, H heads, G key heads, t queries, n keys, d head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from bench.errors import RequestError
from bench.models.attention import FEATURES, HARMLESS, Route, attend
from bench.models.hf import counted
from bench.request import plugins
from longctx_bench.named import built
from methods.base import (
    AttentionCall,
    Feature,
    Method,
    SequenceInfo,
    Unsupported,
    Workload,
    leaves_windows,
)
from methods.base import refusal as refusal_of
from methods.hf import HF
from methods.parts.attention import attend_masked, exact_attention
from methods.parts.kv_cache import CacheMethod, decodes_exactly

PREFIX = "longctx:"
OWN_MASK = "it takes a padding mask [B, n], and no mask of another shape"
PATTERN = "this model's mask is more than causal, windows and padding"
STATIC = "a static cache has room that no query may read: use transformers' DynamicCache"
BOTH_SIDES = "this model's windows reach to both sides of a query"
NO_LAYER = "its attention modules have no layer number (layer_idx)"
NEW_TOKENS = "it reads new tokens from its own cache: longctx_bench.cache({!r}, model)"
SAMPLE = Workload(length=1024, batch=1, heads=4, head_size=64, layers=2, hidden_size=256)
ATTENTION_KINDS = {"window": Feature.WINDOW, "softcap": Feature.SOFTCAP, "sinks": Feature.SINKS}


def register_all(parameters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """See `longctx_bench.register`."""
    given = {name: built(name, of_method) for name, of_method in parameters.items()}
    for name, method in given.items():
        if reason := left_out(name, method):
            raise Unsupported(f"{PREFIX}{name}: {reason}")
    usable = []
    for name in plugins.usable("method"):
        try:
            method = given.get(name) or built(name, {})
            reason = left_out(name, method)
        except RequestError as error:  # another package's method, whose code can't be loaded
            method, reason = Method(), str(error)
        offer(PREFIX + name, Offered(PREFIX + name, method, reason))
        usable += [] if reason else [PREFIX + name]
    return usable


def offer(name: str, function: Any) -> None:
    """Registers an attention function and the mask function that goes with it."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, padding)


def left_out(name: str, method: Method) -> str | None:
    """Why a method isn't an attention alone, or None."""
    kind = type(method)
    if kind.encode is not Method.encode:
        return "it runs the stack of layers itself, and transformers passes only attention to it"
    if kind.mix is not Method.mix:
        return "it needs the hidden states, and transformers passes queries, keys and values"
    if method.own_parameters(SAMPLE, 0):
        return "it has parameters in each layer that the model lacks"
    if method.reads_modules or isinstance(method, HF):
        return "it runs a function that another package already offers to transformers"
    if isinstance(method, CacheMethod):
        return f"it changes the KV cache alone: longctx_bench.cache({name!r}, model)"
    return None


def reads_new_tokens(method: Method) -> bool:
    """Whether the method reads the tokens after a prompt from its own cache, and not exactly."""
    return not decodes_exactly(method.kv_cache(replace(SAMPLE, causal=True)))


def padding(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **_: Any,
) -> Tensor | None:
    """The mask for transformers: [B, kv_length] bool, False at padding; None without padding.
    Raises Unsupported for other masks."""
    if not (allow_is_causal_skip or allow_is_bidirectional_skip):
        raise Unsupported(PATTERN)
    if allow_is_causal_skip and int(q_offset) + q_length != int(kv_offset) + kv_length:
        raise Unsupported(STATIC)
    mask: Tensor | None = flash_attention_mask(
        batch_size, q_length, kv_length, attention_mask=attention_mask
    )
    return mask


@dataclass
class Offered:
    """A method as an attention function of transformers. A prompt is read by the method; new tokens
    after it, a decoder with an encoder, and cross-attention are exact. (Methods that read new
    tokens in another way need their cache for it.)

    name    the registered name
    reason  why it can't be used; None: it can
    """

    name: str
    method: Method
    reason: str | None = None
    refusals: dict[Workload, str | None] = field(default_factory=dict)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        is_causal: bool | None = None,
        **settings: Any,
    ) -> tuple[Tensor, None]:
        """query [B, H, t, d], key and value [B, G, n, d] → ([B, t, H, d], no attention weights).
        Raises Unsupported."""
        features = self.features(settings, attention_mask)
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        sequence = described(attention_mask, causal)
        layer, cached = getattr(module, "layer_idx", None), read_exactly
        if query.shape[2] == key.shape[2] and not _is_beside_encoder(module):
            workload = self._workload(module, query, key, causal, features)
            if not ("window" in features and causal and leaves_windows(self.method, workload)):
                self.check(workload, features)
                if layer is None:
                    raise Unsupported(f"{self.name}: {NO_LAYER}")
                cached = self.method.attend
        elif causal and reads_new_tokens(self.method):
            raise Unsupported(f"{self.name}: {NEW_TOKENS.format(self.name.removeprefix(PREFIX))}")
        family: Any = SimpleNamespace(method=self.method, calls=0, model=None)
        route = Route(family, sequence, layer or 0, cached=cached)
        return attend(module, query, key, value, None, route=route, **settings)

    def features(self, settings: Mapping[str, Any], mask: Tensor | None) -> dict[str, Any]:
        """The fields of AttentionCall that the model's attention module sets. Raises Unsupported
        for what they can't say."""
        given = {
            name for name, value in settings.items() if value is not None and value is not False
        }
        reason = self.reason
        if unknown := given - FEATURES.keys() - HARMLESS - {"dropout", "scaling"}:
            reason = f"this model's attention takes {', '.join(sorted(unknown))}"
        elif mask is not None and mask.ndim != 2:
            reason = OWN_MASK
        if reason:
            raise Unsupported(f"{self.name}: {reason}")
        return {FEATURES[name]: settings[name] for name in FEATURES.keys() & given}

    def check(self, workload: Workload, features: Mapping[str, Any]) -> None:
        """Raises Unsupported where the method can't run the workload."""
        if workload not in self.refusals:
            self.refusals[workload] = refusal_of(self.method, workload)
        reason = self.refusals[workload]
        if "window" in features and not workload.causal:
            reason = BOTH_SIDES
        if reason:
            raise Unsupported(f"{self.name}: {reason}")

    def _workload(
        self, module: Any, query: Tensor, key: Tensor, causal: bool, features: Mapping[str, Any]
    ) -> Workload:
        (batch, heads, n, head_size), config = query.shape, module.config
        wide = features.get("window", 0) >= n
        layers = getattr(config, "layer_types", None) or ["sliding"] * config.num_hidden_layers
        kinds = {kind for name, kind in ATTENTION_KINDS.items() if name in features}
        return Workload(
            length=n,
            batch=batch,
            heads=heads,
            head_size=head_size,
            layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            causal=causal,
            training=module.training and torch.is_grad_enabled(),
            bytes_per_element=query.element_size(),
            key_heads=key.shape[1],
            features=frozenset(kinds - {Feature.WINDOW} if wide else kinds),
            window_layers=sum(kind.startswith("sliding") for kind in layers),
            blocks=False,
        )


def described(mask: Tensor | None, causal: bool) -> SequenceInfo:
    """The keys' metadata from their padding mask [B, n]."""
    sequence = SequenceInfo(valid=mask, causal=causal)
    return sequence if mask is None else sequence.replace(positions=counted(sequence, mask))


def read_exactly(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
    """Exact attention of queries [B, H, t, d], the last tokens where it is causal, to keys and
    values [B, G, n, d] → [B, H, t, d]."""
    (t, n), sequence = (query.shape[2], key.shape[2]), call.sequence
    if t == n:
        return exact_attention(query, key, value, call)
    visible = None if sequence.valid is None else sequence.valid[:, None, None]
    window = n if call.window is None else call.window
    if sequence.causal and (t > 1 or window < n):
        at = torch.arange(n - t, n, device=query.device)[:, None]
        token = torch.arange(n, device=query.device)
        seen = (token <= at) & (token > at - window)
        visible = seen[None, None] if visible is None else visible & seen
    return attend_masked(query, key, value, visible, call)


def _is_beside_encoder(module: Any) -> bool:
    """Whether this is a decoder's attention in a model that has an encoder, or cross-attention."""
    beside = module.config.is_encoder_decoder and getattr(module, "is_decoder", False)
    cross = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
    return bool(beside or cross)
