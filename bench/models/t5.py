"""T5 (Raffel et al., arXiv 1910.10683): a method walks and reads its encoder.

The decoder stays Hugging Face's own, exact, and sees the encoder's whole output. Nothing is
patched: the encoder's blocks are called one by one, with a route to the method's attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import T5ForConditionalGeneration

from bench.models.attention import Route
from bench.models.hf import EncoderDecoder, dots, positions
from methods.base import Layer, Sequence


@dataclass(frozen=True)
class RelativeBias:
    """T5's relative position bias (§2.1), looked up only where it is asked for.

    table [H, 2·reach+1] holds the bias at distances -reach … reach; T5's buckets are the same
    from max_distance on, so farther distances read its ends. Differentiable in the table.
    """

    table: Tensor

    @classmethod
    def of(cls, attention: Any) -> RelativeBias:
        """From the T5Attention that holds the bucket embedding (a stack's first layer)."""
        reach = attention.relative_attention_max_distance
        weight = attention.relative_attention_bias.weight
        buckets = attention._relative_position_bucket(
            torch.arange(-reach, reach + 1, device=weight.device),
            bidirectional=True,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=reach,
        )
        return cls(weight.t().index_select(1, buckets))

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, q, k] for positions [B, q] and [B, k]. Fast where the first or last keys are out
        of every query's reach, as most are when few queries meet many keys in order."""
        before, after = self._out_of_reach(query_positions, key_positions)
        near = key_positions[:, before : key_positions.shape[1] - after]
        distance = near[:, None, :] - query_positions[:, :, None]
        bias = self._at(distance).view(-1, *distance.shape).transpose(0, 1)
        if not before and not after:
            return bias
        ends = (self.table[:, end, None, None] for end in (0, -1))
        left, right = (
            end.expand(*bias.shape[:3], count)
            for end, count in zip(ends, (before, after), strict=True)
        )
        return torch.cat((left, bias, right), -1)

    def _out_of_reach(self, query_positions: Tensor, key_positions: Tensor) -> tuple[int, int]:
        """How many keys at the start stand so far before all queries that one number is their
        bias, and how many at the end so far behind. 0 on a GPU, which would have to wait."""
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
class T5Layer:
    """One encoder block, as a method sees it."""

    family: T5Family
    block: Any
    bias: RelativeBias
    index: int

    def __call__(self, hidden: Tensor, sequence: Sequence) -> Tensor:
        route = Route(self.family, sequence, self.index, self.bias)
        # A position bias that isn't None keeps the block from building its own n×n tensor.
        output: Tensor = self.block(hidden, position_bias=self.bias, route=route)[0]
        return output

    def scores(
        self, queries: Tensor, query_sequence: Sequence, keys: Tensor, key_sequence: Sequence
    ) -> Tensor:
        attention, norm = self.block.layer[0].SelfAttention, self.block.layer[0].layer_norm
        query, key = attention.q(norm(queries)), attention.k(norm(keys))
        bias = self.bias(positions(query_sequence, queries), positions(key_sequence, keys))
        return dots(query, key, attention.n_heads, attention.scaling) + bias


class T5Family(EncoderDecoder):
    """A T5 encoder-decoder (any T5 v1.0 or v1.1 checkpoint) with a method in its encoder."""

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
    def layers(self) -> Items[Layer]:
        """The encoder's blocks; made anew each time, as the bias table follows the weights."""
        blocks = self.model.get_encoder().block
        bias = RelativeBias.of(blocks[0].layer[0].SelfAttention)
        return [T5Layer(self, block, bias, index) for index, block in enumerate(blocks)]

    @property
    def head_size(self) -> int:
        return int(self.model.config.d_kv)

    def encode(self, ids: Tensor, sequence: Sequence) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm."""
        encoder = self.model.get_encoder()
        hidden = encoder.dropout(encoder.embed_tokens(ids))
        hidden = self.method.encode(self.layers, hidden, sequence)
        output: Tensor = encoder.dropout(encoder.final_layer_norm(hidden))
        return output
