"""A block's attention sub-layer, and its path to the method: the attention function that this
project registers with transformers.

A family's layer passes `route=Route(…)` to its Hugging Face attention module, which passes it on
to the attention function, which calls the method; where a model's own forward runs, the routes are
`hung` on its attention modules. Attention without a route (the decoder's in an encoder-decoder, or
cross-attention) is transformers' own SDPA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bench.models import own_parameters
from bench.models.base import Family
from methods.base import AttentionCall, PositionBias, SequenceInfo

NAME = "bench"  # for `set_attn_implementation`

Attend = Callable[[Tensor, Tensor, Tensor, AttentionCall], Tensor]
"""A function with the arguments of `methods.base.Method.attend`."""


@dataclass(frozen=True)
class Route:
    """Leads from one attention layer of a model to `cached`, a cache's `prefill` or `decode`; None:
    to the family's method."""

    family: Family
    sequence: SequenceInfo
    layer: int
    bias: PositionBias | None = None
    model_attention: Attend | None = None
    cached: Attend | None = None
    rotate: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        dropout: float,
        **features: Any,
    ) -> Tensor:
        """query [B, H, n, d], key and value [B, H or a divisor, n, d] → [B, H, n, d]; counts the
        call. `features` are fields of AttentionCall."""
        self.family.calls += 1
        attend = self.cached or self.family.method.attend
        call = self.call(scale, dropout)
        return attend(query, key, value, replace(call, **features) if features else call)

    def call(self, scale: float, dropout: float) -> AttentionCall:
        """The settings of a call, with the method's own parameters."""
        own = own_parameters.of_layer(self.family.model, self.layer)
        return AttentionCall(
            self.sequence, scale, self.layer, self.bias, dropout, own, self.model_attention,
            rotate=self.rotate,
        )  # fmt: skip


FEATURES = {"sliding_window": "window", "softcap": "softcap", "s_aux": "sinks"}
"""Argument from transformers' attention modules → the field of AttentionCall."""
HARMLESS = {"position_ids", "use_cache", "output_attentions"}
_hung: dict[nn.Module, Callable[..., Tensor]] = {}


@contextmanager
def hung(routes: Mapping[nn.Module, Callable[..., Tensor]]) -> Iterator[None]:
    """Inside, these attention modules use their routes, and transformers builds no n×n masks."""
    _hung.update(routes)
    try:
        yield
    finally:
        _hung.clear()


class Projections(NamedTuple):
    """The linear modules of an attention sub-layer, without the norm before it, [B, n, D] → [B, n,
    heads·d] and back; the scale of its scores, and the dropout of its weights in training."""

    query: Any
    key: Any
    value: Any
    output: Any
    head_size: int
    scale: float
    dropout: float


@dataclass
class AttentionSublayer:
    """A `methods.base.Sublayer`. `attention` is the whole sub-layer, with the method's `attend`;
    `rotated` gives queries and keys [B, H, n, d] their positions; `attended` is True once
    `attention` was called."""

    projections: Projections
    attention: Callable[[Tensor], Tensor]
    rotated: Callable[[Tensor], Tensor]
    attended: bool = False

    def __call__(self, hidden: Tensor) -> Tensor:
        self.attended = True
        return self.attention(hidden)

    def query(self, hidden: Tensor) -> Tensor:
        return self.rotated(heads(self.projections.query(hidden), self.projections.head_size))

    def key(self, hidden: Tensor) -> Tensor:
        return self.rotated(heads(self.projections.key(hidden), self.projections.head_size))

    def value(self, hidden: Tensor) -> Tensor:
        return heads(self.projections.value(hidden), self.projections.head_size)

    def output(self, read: Tensor) -> Tensor:
        output: Tensor = self.projections.output(read.transpose(1, 2).flatten(2))
        return output


def heads(x: Tensor, head_size: int) -> Tensor:
    """[B, n, H·d] → [B, H, n, d]"""
    return x.view(*x.shape[:-1], -1, head_size).transpose(1, 2)


@dataclass(frozen=True)
class BlockLayer:
    """One block of a model as a `methods.base.Layer`; subclasses define how the block runs around
    its attention sub-layer, and the projections of the sub-layer."""

    family: Family
    block: Any
    index: int

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        raise NotImplementedError

    def projections(self) -> Projections:
        raise NotImplementedError

    def projected(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, D] → [B, n, D]: input of the projections; in a pre-norm layer, normed."""
        return hidden

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        """The block's own attention sub-layer, [B, n, D] → [B, n, D], by the route."""
        raise NotImplementedError

    def attend_by_parts(self, projected: Tensor, route: Route) -> Tensor:
        """As `attend`, for a sub-layer of transformers that takes no route."""
        parts = self.projections()
        query, key, value = (heads(each(projected), parts.head_size) for each in parts[:3])
        dropout = parts.dropout if self.family.model.training else 0.0
        read = route(query, key, value, parts.scale, dropout)
        output: Tensor = parts.output(read.transpose(1, 2).flatten(2))
        return output

    def route(self, sequence: SequenceInfo) -> Route:
        return Route(self.family, sequence, self.index)

    def rotated(self, x: Tensor, route: Route) -> Tensor:
        """Queries or keys [B, H, n, d] of the last n tokens, with their positions; in most models,
        positions are added elsewhere."""
        return x

    def mix(self, projected: Tensor, route: Route) -> Tensor:
        """The attention sub-layer as the method computes it, [B, n, D] → [B, n, D], before dropout
        and residual connection. It counts as a call for any part of the method that computes it."""
        parts = self.projections()
        sublayer = AttentionSublayer(
            parts, partial(self.attend, route=route), partial(self.rotated, route=route)
        )
        call = route.call(parts.scale, parts.dropout if self.family.model.training else 0.0)
        mixed: Tensor = self.family.method.mix(projected, sublayer, call)
        self.family.calls += not sublayer.attended
        return mixed

    def scores(
        self,
        queries: Tensor,
        query_sequence: SequenceInfo,
        keys: Tensor,
        key_sequence: SequenceInfo,
    ) -> Tensor:
        parts = self.projections()
        query = heads(parts.query(self.projected(queries)), parts.head_size)
        key = heads(parts.key(self.projected(keys)), parts.head_size)
        scores: Tensor = query @ key.transpose(-1, -2) * parts.scale
        return scores


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    route: Callable[..., Tensor] | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: [B, H, n, d] → ([B, n, H, d], no attention weights)."""
    route = route or _hung.get(module)
    if route is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
        return output
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    given = {name: value for name, value in rest.items() if not (value is None or value is False)}
    if _hung and (unknown := given.keys() - FEATURES.keys() - HARMLESS):
        raise ValueError(f"its attention takes {', '.join(sorted(unknown))}")
    features = {FEATURES[name]: value for name, value in given.items() if name in FEATURES}
    return route(query, key, value, scale, dropout, **features).transpose(1, 2), None


def mask(*sizes: Any, **more: Any) -> Any:
    """Mask function for transformers; None if routes are hung: they apply windows and padding."""
    return None if _hung else sdpa_mask(*sizes, **more)


AttentionInterface.register(NAME, attend)
# Without a mask function of the same name, transformers silently drops padding masks.
AttentionMaskInterface.register(NAME, mask)
