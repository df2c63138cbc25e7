"""A new BART: its tokenizer and its first weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration

from bench.request import plugins
from tools.embedded.models.tokenizer import build_tokenizer


def first_weights(new: Any) -> tuple[Any, Any]:
    """A new model, half of it laid out for neighbours, and its tokenizer.

    The first half of a state starts as the token's position, as waves of the lengths in `waves`,
    the other half as the token. In the encoder the first half of the heads read only positions,
    with queries equal to keys, and so attend to neighbouring tokens: words of one sentence must
    exchange information before the decoder can collect them (`sharpness`: the score of a token's
    own position). Cross-attention starts as a copier: outputs are transposed values.
    """
    tokenizer = build_tokenizer(*plugins.load(new.vocabulary)())
    config = BartConfig(
        vocab_size=len(tokenizer),
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=0,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        **new.config,
    )
    model: Any = BartForConditionalGeneration(config)
    half, size = config.d_model // 2, config.d_model // config.encoder_attention_heads
    std = (2 / config.d_model) ** 0.5  # halves of equal norm, a token's about 1
    with torch.no_grad():
        model.model.shared.weight.normal_(std=std)[:, :half] *= 0.1
        model.model.shared.weight[0] = 0
        for stack in (model.get_encoder(), model.get_decoder()):
            table = stack.embed_positions.weight.zero_()
            table[:, :half] = math.sqrt(2) * std * waves(len(table), half, *new.waves)
        for name, weight in model.named_parameters():
            if "_proj.weight" in name:
                torch.nn.init.xavier_uniform_(weight)
        for layer in model.get_encoder().layers:
            look(layer.self_attn, half, size, new.sharpness)
        for layer in model.get_decoder().layers:
            torch.nn.init.orthogonal_(layer.encoder_attn.v_proj.weight)
            layer.encoder_attn.out_proj.weight.copy_(layer.encoder_attn.v_proj.weight.t())
    return model, tokenizer


def waves(n: int, width: int, shortest: float, longest: float) -> Tensor:
    """[n, width] sines and cosines of n positions, with lengths evenly between `shortest` and
    `longest` on a log scale."""
    lengths = torch.logspace(math.log10(shortest), math.log10(longest), width // 2)
    angle = 2 * math.pi * torch.arange(n)[:, None] / lengths
    return torch.cat([angle.sin(), angle.cos()], 1)


def look(attention: Any, half: int, size: int, sharpness: float) -> None:
    """Let the first heads of a layer read positions: each an orthogonal projection of all waves."""
    query, key = attention.q_proj.weight, attention.k_proj.weight
    for head in range(half // size):
        rows = slice(head * size, (head + 1) * size)
        query[rows] = 0
        # The positions in a state have a squared norm of `half`, and so a projection has `size`.
        gain = (sharpness / math.sqrt(size)) ** 0.5
        query[rows, :half] = gain * torch.nn.init.orthogonal_(torch.empty(size, half))
        key[rows] = query[rows]
