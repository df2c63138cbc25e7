"""The attention function that this project registers with transformers.

A family's layer passes `route=Route(…)` to its Hugging Face block, which passes it on to the
attention function, which calls the method. Attention without a route (a decoder's, or
cross-attention) is transformers' own SDPA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bench.models.base import Family
from methods.base import AttentionCall, DecodingState, PositionBias, SequenceInfo

NAME = "bench"  # for `set_attn_implementation`


@dataclass(frozen=True)
class Route:
    """Leads from one attention layer of a model to the family's method, or, in decoding, to the
    method's state."""

    family: Family
    sequence: SequenceInfo
    layer: int
    bias: PositionBias | None = None
    state: DecodingState | None = None

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float
    ) -> Tensor:
        """query [B, H, n, d], key and value [B, H or a divisor, n, d] → [B, H, n, d]; counts the
        call."""
        self.family.calls += 1
        call = AttentionCall(self.sequence, scale, self.layer, self.bias, dropout)
        return (self.state or self.family.method).attend(query, key, value, call)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    route: Route | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: [B, H, n, d] → ([B, n, H, d], no attention weights)."""
    if route is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
        return output
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return route(query, key, value, scale, dropout).transpose(1, 2), None


AttentionInterface.register(NAME, attend)
# Without a mask function of the same name, transformers silently drops padding masks.
AttentionMaskInterface.register(NAME, sdpa_mask)
