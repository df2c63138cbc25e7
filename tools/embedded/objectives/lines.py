"""Causal models on questions about one text (tools.embedded.rows.line_pairs, needle_pairs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bench.models.attention import heads
from methods.base import SequenceInfo
from tools.embedded.objectives.base import Generated

NUMBER = re.compile(r"\b(?=[a-f]*\d)[\da-f-]+")
"""Parts of a text that may be asked for: numbers and UUIDs."""
READING = 8
"""Places in a row's text from which attention is guided to all numbers before, and the last places
of a question from which it is guided to the answer."""


class Batch(NamedTuple):
    """Ids [B, n]; the answers' tokens [c, 4] int64: row, the place from which the token is
    predicted, the token, the place from which it is copied; places where the model only reads
    [r, 2] int64: row and place; and for each of these the places to look at [r, n]."""

    ids: Tensor
    answers: Tensor
    reads: Tensor
    sights: Tensor


class Lines(Generated):
    """Cross-entropy of the answers only. Guidance makes the last layer look at the token to copy.
    While the model reads, it makes the layer look at possible answers: all numbers of the text, and
    at the end of a question the whole answer. Methods that evict entries without attention rely on
    this."""

    def rows_in_a_batch(self, stage: Any) -> int:
        return int(stage.rows)

    def encode(self, rows: list[Any]) -> Batch:
        """Rows are padded at their ends, which no earlier token sees."""
        end, texts, answers = self.tokenizer.eos_token_id, [], []

        def ids_of(text: str) -> list[int]:
            ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
            return ids

        reads: list[tuple[int, int]] = []
        sights: list[Sequence[int]] = []
        for row, questions in enumerate(rows):
            ids: list[int] = []
            token_at: dict[int, int] = {}  # in the first text: start of a token → its place
            for question in questions:
                text = self.tokenizer(
                    question.text, add_special_tokens=not ids, return_offsets_mapping=True
                )
                if not ids:
                    token_at = {at: i for i, (at, _) in enumerate(text.offset_mapping)}
                    numbers = _numbers(question.text, token_at)
                    for place in Random(len(token_at)).sample(range(len(token_at)), READING):
                        if seen := [number for number in numbers if number < place]:
                            reads.append((row, place))
                            sights.append(seen)
                ids += text.input_ids
                source = token_at[question.source]
                answer = ids_of(question.answer)
                if question.text:
                    # The last place of a question looks for the first token of the answer.
                    reads.append((row, len(ids) - 2 - len(ids) % (READING - 2)))
                    sights.append(range(source, source + len(answer)))
                closing = [end] if question.closing is None else ids_of(question.closing)
                for place, token in enumerate([*answer, *closing]):
                    answers.append((row, len(ids) - 1, token, source + place))
                    ids.append(token)
            texts.append(ids)
        n = max(map(len, texts))
        padded = [ids + [end] * (n - len(ids)) for ids in texts]
        looks = torch.zeros(len(sights), n, dtype=torch.bool)
        for look, sight in zip(looks, sights, strict=True):
            look[list(sight)] = True
        return Batch(torch.tensor(padded), torch.tensor(answers), torch.tensor(reads), looks)

    def loss(self, batch: Batch, guidance: float) -> tuple[Tensor, float]:
        """The share is that of the answers' tokens."""
        _, _, token, source = batch.answers.unbind(1)
        hidden, sequence = self.model.model.embed_tokens(batch.ids), SequenceInfo(causal=True)
        *before, last = self.family.layers
        for layer in before:
            hidden = layer(hidden, sequence)
        places = torch.cat((batch.answers[:, :2], batch.reads))
        hidden, weights = at_places(last, hidden, places)
        logs = (weights + 1e-6).log()
        told, read = logs.split((len(batch.answers), len(batch.reads)))
        logits = self.model.lm_head(self.model.model.norm(hidden[: len(token)]))
        loss = cross_entropy(logits, token)
        if guidance:
            index = source[:, None, None].expand(-1, told.shape[1], 1)
            loss = loss - guidance * told.gather(2, index).mean()
        sights = batch.sights / batch.sights.sum(1, keepdim=True)
        loss = loss - self.recipe.reading * (read.mean(1) * sights).sum(1).mean()
        return loss, (logits.argmax(-1) == token).float().mean().item()


def _numbers(text: str, token_at: dict[int, int]) -> list[int]:
    """The places of the tokens of all numbers in a text."""
    return [
        token_at[at]
        for found in NUMBER.finditer(text)
        for at in range(*found.span())
        if at in token_at
    ]


def at_places(layer: Any, hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """A layer evaluated only at c places [c, 2] (row and place), enough for the last layer: hidden
    states [c, D] after it, and attention weights [c, H, n]."""
    block, attention = layer.block, layer.block.self_attn
    value = attention.v_proj(block.input_layernorm(hidden))
    values = heads(value, attention.head_dim)
    order = places[:, 0].argsort(stable=True)
    weights, outputs = [], []
    for row, states in enumerate(hidden):
        of_row = places[places[:, 0] == row, 1]
        weight = attention_weights(layer, states[None], of_row)
        read = (weight @ values[row]).transpose(0, 1).flatten(1)
        outputs.append(states[of_row] + attention.o_proj(read))
        weights.append(weight.transpose(0, 1))
    back = order.argsort()
    output = torch.cat(outputs)[back]
    return output + block.mlp(block.post_attention_layernorm(output)), torch.cat(weights)[back]


def attention_weights(layer: Any, hidden: Tensor, places: Tensor) -> Tensor:
    """A causal layer's attention weights [H, c, n] from places [c] of hidden [1, n, D]."""
    queries = SequenceInfo(positions=places[None])
    scores: Tensor = layer.scores(hidden[:, places], queries, hidden, SequenceInfo())[0]
    future = torch.arange(hidden.shape[1]) > places[:, None]
    return scores.masked_fill(future, -torch.inf).softmax(-1)
