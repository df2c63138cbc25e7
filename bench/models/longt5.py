"""LongT5 (Guo et al., arXiv 2112.07916): a T5 whose encoder has local or transient-global
attention.

A token reads those within the local radius. With transient-global attention it also reads one
further key for every block of 16 tokens, from the normed sum of the block's hidden states (§3).

As in transformers, leftover tokens at the end join the block before them, and inputs shorter than a
block have no such key. Distances and blocks are counted in each row's valid tokens, so padding on
the left changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import LongT5ForConditionalGeneration

from bench.models.attention import Route, heads
from bench.models.hf import all_valid
from bench.models.t5 import RelativeBias, T5Family, T5Layer
from methods.base import AttentionCall, Layer, SequenceInfo
from methods.parts.attention import add_key_bias
from methods.parts.blocks import Blocks
from methods.parts.window import FurtherKeys, window_attention


@dataclass(frozen=True)
class LongT5Layer(T5Layer):
    """One encoder block; `global_bias` is the bias of the keys of blocks; None: no such keys."""

    global_bias: RelativeBias | None

    @property
    def attention(self) -> Any:
        return attention_of(self.block)

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        further = self._block_keys(projected, route.sequence)
        local = partial(_local, radius=self.attention.local_radius, further=further)
        return self.attend_by_parts(projected, replace(route, model_attention=local))

    def _block_keys(self, projected: Tensor, sequence: SequenceInfo) -> FurtherKeys | None:
        """The keys of blocks; hidden states [B, n, D] after the layer's norm."""
        attention, table = self.attention, self.global_bias
        if table is None or projected.shape[1] < attention.global_block_size:
            return None
        size = attention.global_block_size
        sums = Blocks.of(sequence, projected, size).split(projected).sum(-2)
        at = torch.arange(sums.shape[1], device=sums.device)
        full = all_valid(projected[..., 0], sequence).sum(1, keepdim=True) // size
        leftover = sums.masked_fill((at != full)[..., None], 0)
        sums = sums + pad(leftover[:, 1:], (0, 0, 0, 1))
        hidden = attention.global_input_layer_norm(sums)
        absent = sums.new_zeros(full.shape[0], len(at)).masked_fill(
            at >= full, torch.finfo(sums.dtype).min
        )

        def bias(ranks: Tensor, _: Tensor) -> Tensor:
            blocks = torch.minimum(ranks // size, full - 1)
            return add_key_bias(table(blocks, at[None]), absent[:, None, None])

        head_size = attention.key_value_proj_dim
        key, value = (heads(project(hidden), head_size) for project in (attention.k, attention.v))
        return FurtherKeys(key, value, bias)


class LongT5Family(T5Family):
    """Any LongT5 checkpoint. Its encoder's attention isn't exact: no method replaces it."""

    kinds = ("longt5",)
    architecture = LongT5ForConditionalGeneration
    tiny_config: ClassVar[dict[str, Any]] = {
        **T5Family.tiny_config,
        "encoder_attention_type": "transient-global",
        "local_radius": 7,
        "global_block_size": 4,
    }

    @property
    def model_attention(self) -> str:
        return f"{self.model.config.encoder_attention_type} attention"

    @property
    def layers(self) -> Sequence[Layer]:
        """The encoder's blocks; new objects each time, since the biases depend on the weights."""
        blocks = self.model.get_encoder().block
        first = attention_of(blocks[0])
        bias, global_bias = RelativeBias.of(first), None
        if hasattr(first, "global_relative_attention_bias"):
            global_bias = RelativeBias.of(first, first.global_relative_attention_bias.weight)
        return [LongT5Layer(self, block, i, bias, global_bias) for i, block in enumerate(blocks)]


def attention_of(block: Any) -> Any:
    """The attention module of an encoder's block."""
    layer = block.layer[0]
    local = getattr(layer, "LocalSelfAttention", None)
    return layer.TransientGlobalSelfAttention if local is None else local


def _local(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, radius: int,
    further: FurtherKeys | None,
) -> Tensor:  # fmt: skip
    return window_attention(query, key, value, call, radius, further)
