"""BART (Lewis et al., arXiv 1910.13461): a method walks and reads its encoder.

Positions past the learned table read it again from its start (a table extended by tiling); they
count from each row's first valid token. LayerDrop, which some checkpoints were trained with, isn't
applied: a method walks every layer.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import dropout, embedding
from transformers import BartForConditionalGeneration

from bench.models.attention import Route
from bench.models.hf import EncoderDecoder, counted, heads
from methods.base import Layer, Sequence, Shape


@dataclass(frozen=True)
class BartLayer:
    """One post-norm encoder block, as a method sees it."""

    family: BartFamily
    block: Any
    index: int

    def __call__(self, hidden: Tensor, sequence: Sequence) -> Tensor:
        route = Route(self.family, sequence, self.index)
        output: Tensor = self.block(hidden, attention_mask=None, route=route)
        return output

    def scores(
        self, queries: Tensor, query_sequence: Sequence, keys: Tensor, key_sequence: Sequence
    ) -> Tensor:
        attention = self.block.self_attn
        query = heads(attention.q_proj(queries), attention.num_heads)
        key = heads(attention.k_proj(keys), attention.num_heads)
        scores: Tensor = query @ key.transpose(-1, -2) * attention.scaling
        return scores


class BartFamily(EncoderDecoder):
    """Any BART encoder-decoder checkpoint with a method in its encoder. Decoder and
    cross-attention get no route, so they stay exact."""

    kinds = ("bart",)
    architecture = BartForConditionalGeneration
    tiny_config: ClassVar[dict[str, Any]] = {
        "vocab_size": 64,
        "d_model": 32,
        "encoder_layers": 3,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    }

    @property
    def layers(self) -> Items[Layer]:
        blocks = self.model.get_encoder().layers
        return [BartLayer(self, block, index) for index, block in enumerate(blocks)]

    def shape(self, length: int, batch: int) -> Shape:
        config = self.model.config
        return Shape(
            length=length,
            batch=batch,
            heads=config.encoder_attention_heads,
            head_size=config.d_model // config.encoder_attention_heads,
            layers=config.encoder_layers,
            hidden_size=config.d_model,
            training=self.model.training,
            bytes_per_element=self.model.dtype.itemsize,
        )

    def encode(self, ids: Tensor, sequence: Sequence) -> Tensor:
        """ids [B, n] → [B, n, D]"""
        encoder = self.model.get_encoder()
        table = encoder.embed_positions
        tiled = counted(sequence, ids) % (table.num_embeddings - table.offset)
        hidden = encoder.embed_tokens(ids) + embedding(tiled + table.offset, table.weight)
        hidden = encoder.layernorm_embedding(hidden)
        hidden = dropout(hidden, p=encoder.dropout, training=encoder.training)
        return self.method.encode(self.layers, hidden, sequence)
