"""BART (Lewis et al., arXiv 1910.13461): the method runs its encoder.

Positions past the learned table start over at its beginning (a table extended by tiling); they
count from each row's first valid token. LayerDrop, used in the training of some checkpoints, is not
applied: the method gets every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import dropout, embedding
from transformers import BartForConditionalGeneration

from bench.models.attention import BlockLayer, Projections, Route
from bench.models.hf import EncoderDecoder, clamped, counted
from methods.base import Layer, SequenceInfo


@dataclass(frozen=True)
class BartLayer(BlockLayer):
    """One post-norm encoder block: a `methods.base.PostNormLayer`."""

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return clamped(self.final_norm(self.before_norm(hidden, sequence)))

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        output: Tensor = self.block.self_attn(projected, attention_mask=None, route=route)[0]
        return output

    def before_norm(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        block, training = self.block, self.block.training
        read = self.mix(hidden, self.route(sequence))
        hidden = block.self_attn_layer_norm(hidden + dropout(read, block.dropout, training))
        inner = dropout(block.activation_fn(block.fc1(hidden)), block.activation_dropout, training)
        return hidden + dropout(block.fc2(inner), block.dropout, training)

    def final_norm(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.block.final_layer_norm(hidden)
        return output

    def projections(self) -> Projections:
        attention = self.block.self_attn
        return Projections(
            attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj,
            attention.head_dim, attention.scaling, attention.dropout,
        )  # fmt: skip


class BartFamily(EncoderDecoder):
    """Any BART encoder-decoder checkpoint, with the method in its encoder. Decoder and
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
    def layers(self) -> Sequence[Layer]:
        blocks = self.model.get_encoder().layers
        return [BartLayer(self, block, index) for index, block in enumerate(blocks)]

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D]"""
        encoder = self.model.get_encoder()
        table = encoder.embed_positions
        offset = getattr(table, "offset", 0)  # rows before that of position 0
        tiled = counted(sequence, ids) % (table.num_embeddings - offset)
        hidden = encoder.embed_tokens(ids) + embedding(tiled + offset, table.weight)
        hidden = encoder.layernorm_embedding(hidden)
        hidden = dropout(hidden, p=encoder.dropout, training=encoder.training)
        return self.method.encode(self.layers, hidden, sequence)
