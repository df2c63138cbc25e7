"""LED, Longformer's encoder-decoder (Beltagy et al., arXiv 2004.05150, §7): a BART whose encoder
has a sliding window of keys, and a first token that is global.

A token reads those within half a window and the first one, which reads all tokens, through second
projections (§3.1). transformers' model accepts any global tokens; here only the first is global, as
for the paper's summaries. Positions count from each row's first valid token, and start over at the
end of the learned table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor
from transformers import LEDForConditionalGeneration

from bench.models.attention import Projections, Route, heads
from bench.models.bart import BartFamily, BartLayer
from methods.base import AttentionCall, Layer
from methods.parts.window import GlobalTokens, first_tokens, window_and_global_attention


@dataclass(frozen=True)
class LEDLayer(BartLayer):
    """One post-norm encoder block."""

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        attention = self.block.self_attn.longformer_self_attn

        def second(tokens: GlobalTokens) -> Sequence[Tensor]:
            chosen = tokens.take(projected[:, None])[:, 0]
            pairs = (
                (attention.query_global, chosen),
                (attention.key_global, projected),
                (attention.value_global, projected),
            )
            return [heads(project(x), attention.head_dim) for project, x in pairs]

        def windowed(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
            radius = attention.one_sided_attn_window_size
            first = first_tokens(call.sequence, query)
            return window_and_global_attention((query, key, value), second, call, radius, first)

        return self.attend_by_parts(projected, replace(route, model_attention=windowed))

    def projections(self) -> Projections:
        sublayer = self.block.self_attn
        attention = sublayer.longformer_self_attn
        return Projections(
            attention.query, attention.key, attention.value, sublayer.output,
            attention.head_dim, attention.head_dim**-0.5, attention.dropout,
        )  # fmt: skip


class LEDFamily(BartFamily):
    """Any LED checkpoint. Its encoder's attention isn't exact: no method replaces it."""

    kinds = ("led",)
    architecture = LEDForConditionalGeneration
    tiny_config: ClassVar[dict[str, Any]] = {
        **{k: v for k, v in BartFamily.tiny_config.items() if k != "max_position_embeddings"},
        "max_encoder_position_embeddings": 128,
        "max_decoder_position_embeddings": 128,
        "attention_window": 8,
    }

    @property
    def model_attention(self) -> str:
        return "sliding windows and a global token"

    @property
    def layers(self) -> Sequence[Layer]:
        blocks = self.model.get_encoder().layers
        return [LEDLayer(self, block, index) for index, block in enumerate(blocks)]
