"""A new RoBERTa with a span and a choice head: its tokenizer, and first weights that retrieve by
content, so that training has something to sharpen from the first step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import RobertaConfig

from bench.models.heads import RobertaForChoice, RobertaForSpan, RobertaWithHeads
from bench.request import plugins
from tools.embedded.models.tokenizer import build_tokenizer

DRAWS = 4096  # sets of frequencies, of which the best is kept


class RobertaForBoth(RobertaWithHeads):
    """One encoder with the weights of both heads: each head's family loads its own."""

    outputs: ClassVar[Mapping[str, int]] = {**RobertaForChoice.outputs, **RobertaForSpan.outputs}


def first_weights(new: Any) -> tuple[Any, Any]:
    """A new model, its attention laid out for retrieval, and its tokenizer.

    Positions are waves in separate dimensions, with frequencies whose sum of cosines has one peak
    within the table: a head whose query is the key rotated by j steps attends to the token j places
    ahead, and to no other. In the first layer such heads (`shifts`) write each token's neighbours,
    one word code each, into separate dimensions. In the next layers heads start by
    matching one of these codes with another (`matches`: for each layer, lists of [code of the
    query, of the key] that a head sums; 0 is the token's own word, -2 the second one before it,
    "1.3" the code that head 3 of layer 1 has read), so that a word retrieves the neighbour of the
    same word elsewhere (an induction head). A match {shift: j} is a head of positions again.
    """
    tokenizer = build_tokenizer(*plugins.load(new.vocabulary)())
    tokenizer.add_tokens(list(new.marks), special_tokens=True)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=new.positions + 1,
        initializer_range=0.05,
        **new.config,
    )
    model: Any = RobertaForBoth(config)
    with torch.no_grad():
        _Layout(model.roberta, config, new).lay()
        for head in ("paragraph", "sentence"):  # unused, and never trained
            model.heads.get_submodule(head).get_parameter("weight").zero_()
    return model, tokenizer


def frequencies(count: int, length: int, draws: int = DRAWS) -> tuple[Tensor, float]:
    """The set of frequencies [count], out of `draws` random ones, whose mean of cosines has the
    smallest maximum over the distances 1 … length, and how far below 1 this maximum is."""
    distance = torch.arange(1.0, length + 1)
    best, low = torch.zeros(count), 1.0
    for _ in range(draws):
        tried = torch.rand(count) * math.pi
        highest = (distance[:, None] * tried).cos().mean(1).max().item()
        if highest < low:
            best, low = tried, highest
    return best, 1 - low


class _Layout:
    """Dimensions of the hidden state: waves of positions, the word, and the code that each shifted
    head of the first layer reads. A code has a head's size."""

    def __init__(self, model: Any, config: Any, new: Any) -> None:
        self.model, self.config, self.new = model, config, new
        self.size = config.hidden_size // config.num_attention_heads
        self.code = torch.eye(config.hidden_size).split(self.size)
        self.waves, self.gap = frequencies(self.size // 2, new.positions, new.get("draws", DRAWS))
        self.places: dict[Any, Tensor] = {0: self.code[1]}  # code → [size, hidden]
        self.free = torch.arange(config.hidden_size) >= self.size

    def lay(self) -> None:
        new, layers = self.new, self.model.encoder.layer
        embeddings = self.model.embeddings
        angle = torch.arange(new.positions)[:, None] * self.waves
        table = embeddings.position_embeddings.weight.zero_()
        table[1:, : self.size] = math.sqrt(2) * torch.cat((angle.cos(), angle.sin()), 1)
        embeddings.token_type_embeddings.weight.zero_()
        words = embeddings.word_embeddings.weight.normal_()
        words[:, : self.size] = 0
        words[:, 3 * self.size :] = 0
        for layer in layers:
            for linear in (layer.attention.output.dense, layer.output.dense):
                linear.weight[: self.size] = 0  # no layer changes positions
        hidden = self.model.embeddings(torch.randint(len(words), (1, 256)))
        for number, layer in enumerate(layers):
            # Layer norms rescale the waves, and with them the sharpness of a head of positions.
            self.energy = hidden[..., : self.size].square().sum(-1).mean().item()
            if number == 0:
                self._shifts(layer, list(new.shifts))
            else:
                heads = list(new.matches[number - 1]) if number <= len(new.matches) else []
                for head in range(self.config.num_attention_heads):
                    self._head(layer, number, head, heads[head] if head < len(heads) else None)
            hidden = layer(hidden)

    def _shifts(self, layer: Any, shifts: list[int]) -> None:
        back = [shift for shift in shifts if shift < 0]
        for head, shift in enumerate(shifts):
            self._look(layer, head, shift)
            rows = slice(head * self.size, (head + 1) * self.size)
            layer.attention.self.value.weight[rows] = self.code[1]
            write = self.code[3 + back.index(shift)] if shift < 0 else self._anywhere()
            layer.attention.output.dense.weight[:, rows] = self.new.loudness * write.t()
            self.places[shift] = write

    def _anywhere(self) -> Tensor:
        """A code's place across all dimensions except those of positions, [size, hidden]."""
        drawn = torch.randn(self.config.hidden_size, self.size) * self.free[:, None]
        place: Tensor = torch.linalg.qr(drawn).Q.t()
        return place

    def _look(self, layer: Any, head: int, shift: int) -> None:
        """Attention to the token `shift` places ahead: the query is rotated by `shift` steps."""
        attention = layer.attention.self
        rows = slice(head * self.size, (head + 1) * self.size)
        half = self.size // 2
        turn = torch.zeros(self.size, self.config.hidden_size)
        cos, sin = (self.waves * shift).cos(), (self.waves * shift).sin()
        for i in range(half):
            turn[i, i], turn[i, half + i] = cos[i], -sin[i]
            turn[half + i, i], turn[half + i, half + i] = sin[i], cos[i]
        scale = self.size**-0.5 * self.energy * self.gap
        attention.query.weight[rows] = turn * self.new.sharpness / scale
        attention.key.weight[rows] = self.code[0]

    def _head(self, layer: Any, number: int, head: int, match: Any) -> None:
        attention, rows = layer.attention.self, slice(head * self.size, (head + 1) * self.size)
        write = self._anywhere()
        self.places[f"{number}.{head}"] = write
        attention.value.weight[rows] = self.code[1]
        layer.attention.output.dense.weight[:, rows] = self.new.loudness * write.t()
        if match is None:
            torch.nn.init.orthogonal_(attention.query.weight[rows]).mul_(self.new.likeness)
            attention.key.weight[rows] = attention.query.weight[rows]
        elif "shift" in match:
            self._look(layer, head, match["shift"])
        else:
            query = key = torch.zeros(self.size, self.config.hidden_size)
            for left, right in match:
                mix = torch.linalg.qr(torch.randn(self.size, self.size)).Q
                query, key = query + mix @ self.places[left], key + mix @ self.places[right]
            attention.query.weight[rows] = self.new.matching * query
            attention.key.weight[rows] = self.new.matching * key
