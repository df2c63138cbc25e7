"""T5 (Raffel et al., arXiv 1910.10683): the method runs its encoder.

The decoder stays Hugging Face's own, exact, and attends to all of the encoder's output. Nothing is
patched: the encoder's blocks are called one by one, with a route to the method's attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import T5ForConditionalGeneration

from bench.models.attention import BlockLayer, Projections, Route
from bench.models.hf import EncoderDecoder, clamped, positions
from methods.base import Layer, SequenceInfo

SCALE = 1.0
"""Scale of the scores: T5 scales its initial weights instead (T5, §2.1)."""


@dataclass(frozen=True)
class RelativeBias:
    """T5's relative position bias (§2.1), looked up only for the requested pairs.

    table [H, 2·reach+1] holds the bias at distances -reach … reach; T5's buckets are the same
    from max_distance on, so greater distances take its ends. Differentiable in the table.
    """

    table: Tensor

    @classmethod
    def of(cls, attention: Any, table: Tensor | None = None) -> RelativeBias:
        """From the T5Attention that holds the bucket embedding (a stack's first layer), or from
        another `table` [buckets, H]."""
        reach = attention.relative_attention_max_distance
        weight = attention.relative_attention_bias.weight if table is None else table
        buckets = attention._relative_position_bucket(
            torch.arange(-reach, reach + 1, device=weight.device),
            bidirectional=True,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=reach,
        )
        return cls(weight.t().index_select(1, buckets))

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, q, k] for positions [B, q] and [B, k]. Fast if the first or last keys are out of
        reach of every query, as with few queries and many keys in order."""
        before, after = self._out_of_reach(query_positions, key_positions)
        near = key_positions[:, before : key_positions.shape[1] - after]
        distance = near[:, None, :] - query_positions[:, :, None]
        bias = self._at(distance).view(len(self.table), *distance.shape).transpose(0, 1)
        if not before and not after:
            return bias
        ends = (self.table[:, end, None, None] for end in (0, -1))
        left, right = (
            end.expand(*bias.shape[:3], count)
            for end, count in zip(ends, (before, after), strict=True)
        )
        return torch.cat((left, bias, right), -1)

    def _out_of_reach(self, query_positions: Tensor, key_positions: Tensor) -> tuple[int, int]:
        """The numbers of keys at the start and at the end that are so far from all queries that
        they share one bias. 0 on a GPU, where this would need a synchronization."""
        if self.table.device.type != "cpu":
            return 0, 0
        reach = self.table.shape[1] // 2
        before = (key_positions <= query_positions.amin(1, keepdim=True) - reach).all(0)
        after = (key_positions >= query_positions.amax(1, keepdim=True) + reach).all(0)
        return int(before.long().cumprod(0).sum()), int(after.flip(0).long().cumprod(0).sum())

    def diagonals(self, n: int) -> Tensor:
        """[H, 2n-1]: the bias at key position minus query position = -(n-1) … n-1."""
        return self._at(torch.arange(1 - n, n, device=self.table.device))

    def _at(self, distance: Tensor) -> Tensor:
        reach = self.table.shape[1] // 2
        index = distance.clamp(-reach, reach).add_(reach)
        # One flat gather for all heads: 4 times as fast as indexing, and rows stay contiguous.
        return self.table.index_select(1, index.flatten())


@dataclass(frozen=True)
class T5Layer(BlockLayer):
    """One pre-norm encoder block, with the bias that all blocks share."""

    bias: RelativeBias

    @property
    def attention(self) -> Any:
        return self.block.layer[0].SelfAttention

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        route = replace(self.route(sequence), bias=self.bias)
        mixed = self.mix(self.projected(hidden), route)
        hidden = clamped(hidden + self.block.layer[0].dropout(mixed))
        return clamped(self.block.layer[-1](hidden))

    def projected(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.block.layer[0].layer_norm(hidden)
        return output

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        # With a position bias that isn't None, the block doesn't build an n×n tensor itself.
        output: Tensor = self.attention(projected, position_bias=self.bias, route=route)[0]
        return output

    def scores(
        self,
        queries: Tensor,
        query_sequence: SequenceInfo,
        keys: Tensor,
        key_sequence: SequenceInfo,
    ) -> Tensor:
        bias = self.bias(positions(query_sequence, queries), positions(key_sequence, keys))
        return super().scores(queries, query_sequence, keys, key_sequence) + bias

    def projections(self) -> Projections:
        attention = self.attention
        return Projections(
            attention.q, attention.k, attention.v, attention.o,
            attention.key_value_proj_dim, SCALE, attention.dropout,
        )  # fmt: skip


class T5Family(EncoderDecoder):
    """A T5 encoder-decoder (any T5 v1.0 or v1.1 checkpoint), with the method in its encoder."""

    kinds = ("t5",)
    architecture = T5ForConditionalGeneration
    position_bias = True
    tiny_config: ClassVar[dict[str, Any]] = {
        "vocab_size": 64,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 3,
        "num_decoder_layers": 1,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    }

    def routed(self) -> Any:
        return self.model.get_encoder()

    @property
    def layers(self) -> Sequence[Layer]:
        """The encoder's blocks; new objects each time, since the bias depends on the weights."""
        blocks = self.model.get_encoder().block
        bias = RelativeBias.of(blocks[0].layer[0].SelfAttention)
        return [T5Layer(self, block, index, bias) for index, block in enumerate(blocks)]

    @property
    def head_size(self) -> int:
        return int(self.model.config.d_kv)

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm."""
        encoder = self.model.get_encoder()
        hidden = encoder.dropout(encoder.embed_tokens(ids))
        hidden = self.method.encode(self.layers, hidden, sequence)
        output: Tensor = encoder.dropout(encoder.final_layer_norm(hidden))
        return output
