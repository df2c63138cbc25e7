"""A new T5: its tokenizer, its first weights, and a fast way to train it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from bench.request import plugins
from methods.base import AttentionCall, Method, PositionBias
from methods.parts.attention import exact_attention
from tools.embedded.models.tokenizer import build_tokenizer


def first_weights(new: Any) -> tuple[Any, Any]:
    """A new model, its attention laid out for retrieval, and its tokenizer.

    Retrieval by content needs tokens that encode their neighbours and attend to similar tokens;
    training alone stays on a plateau for a long time. So each encoder head starts with a window of
    distances (`heads`; elsewhere its bias is -`sharpness`). Windows of one token come first, have
    no queries, and in the first layer outputs `loudness` times larger than usual. In other heads
    queries start equal to keys, in the decoder also outputs to transposed values (mimetic
    initialisation, Trockman & Kolter, arXiv 2305.09828).
    """
    tokenizer = build_tokenizer(*plugins.load(new.vocabulary)())
    config = T5Config(
        vocab_size=len(tokenizer),
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        **new.config,
    )
    model = T5ForConditionalGeneration(config)
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        table = attention.relative_attention_bias.weight.zero_()
        distance = torch.arange(-config.relative_attention_max_distance, 129)
        bucket = attention._relative_position_bucket(distance, True, table.shape[0], 128)
        for head, (low, high) in enumerate(new.heads):
            table[bucket[(distance < low) | (distance > high)], head] = -new.sharpness
            table[bucket[(distance >= low) & (distance <= high)], head] = 0.0
        readers = [block.layer[0].SelfAttention for block in model.encoder.block]
        copiers = [block.layer[1].EncDecAttention for block in model.decoder.block]
        shifts = sum(low == high for low, high in new.heads) * config.d_kv
        readers[0].o.weight[:, :shifts] *= new.loudness
        for layer in [*readers, *copiers]:
            torch.nn.init.orthogonal_(layer.q.weight).mul_(new.likeness)
            layer.k.weight.copy_(layer.q.weight)
        for layer in readers:
            layer.q.weight[:shifts] = 0
        for layer in copiers:
            torch.nn.init.orthogonal_(layer.v.weight)
            layer.o.weight.copy_(layer.v.weight.t())
    return model, tokenizer


@dataclass(frozen=True)
class HeadBias:
    """The bias of some heads of a layer, as a `methods.base.PositionBias`."""

    bias: PositionBias
    heads: slice

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self.bias(query_positions, key_positions)[:, self.heads]

    def diagonals(self, n: int) -> Tensor:
        return self.bias.diagonals(n)[self.heads]


@dataclass(frozen=True)
class Shifted(Method):
    """Vanilla for a model whose first heads have no queries and a bias with which head i attends
    only to the token i+1 places before: its values are shifted, to within n·exp(-sharpness), at a
    fraction of the cost. Those queries get no gradient and stay zero. For training."""

    back: int = 5

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        assert call.bias is not None
        back, n = self.back, query.shape[2]
        shifted = torch.stack([value[:, head].roll(head + 1, 1) for head in range(back)], 1)
        # The first tokens have no token so far back: their bias is nearly constant.
        bias = call.bias(torch.arange(back)[None], torch.arange(n)[None])[:, :back]
        first = bias.softmax(-1) @ value[:, :back]
        free = dataclasses.replace(call, bias=HeadBias(call.bias, slice(back, None)))
        rest = exact_attention(query[:, back:], key[:, back:], value[:, back:], free)
        return torch.cat([torch.cat([first, shifted[:, :, back:]], 2), rest], 1)
