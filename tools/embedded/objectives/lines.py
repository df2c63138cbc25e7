"""Causal models on questions about one record (tools.embedded.rows.line_pairs)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bench.models.attention import heads
from methods.base import SequenceInfo
from tools.embedded.objectives.base import Generated


class Batch(NamedTuple):
    """Ids [B, n], and the answers' tokens [c, 4] int64: row, the place from which the token is
    predicted, the token, the place that it is copied from."""

    ids: Tensor
    answers: Tensor


class Lines(Generated):
    """Cross-entropy of the answers alone. Guidance asks the last layer to look at the token to
    copy."""

    def rows_in_a_batch(self, stage: Any) -> int:
        return int(stage.rows)

    def encode(self, rows: list[Any]) -> Batch:
        """Rows are padded at their ends, which no earlier token sees."""
        end, texts, answers = self.tokenizer.eos_token_id, [], []
        for row, questions in enumerate(rows):
            ids: list[int] = []
            token_at: dict[int, int] = {}  # of the first text: where a token begins → its place
            for question in questions:
                text = self.tokenizer(
                    question.text, add_special_tokens=not ids, return_offsets_mapping=True
                )
                token_at = token_at or {at: i for i, (at, _) in enumerate(text.offset_mapping)}
                ids += text.input_ids
                source = token_at[question.source]
                answer = self.tokenizer(question.answer, add_special_tokens=False).input_ids
                for place, token in enumerate([*answer, end]):
                    answers.append((row, len(ids) - 1, token, source + place))
                    ids.append(token)
            texts.append(ids)
        n = max(map(len, texts))
        padded = [ids + [end] * (n - len(ids)) for ids in texts]
        return Batch(torch.tensor(padded), torch.tensor(answers))

    def loss(self, batch: Batch, guidance: float) -> tuple[Tensor, float]:
        """The share is of the answers' tokens."""
        _, _, token, source = batch.answers.unbind(1)
        hidden, sequence = self.model.model.embed_tokens(batch.ids), SequenceInfo(causal=True)
        *before, last = self.family.layers
        for layer in before:
            hidden = layer(hidden, sequence)
        hidden, weights = at_answers(last, hidden, batch)
        logits = self.model.lm_head(self.model.model.norm(hidden))
        loss = cross_entropy(logits, token)
        if guidance:
            index = source[:, None, None].expand(-1, weights.shape[1], 1)
            loss = loss - guidance * (weights.gather(2, index)[..., 0] + 1e-6).log().mean()
        return loss, (logits.argmax(-1) == token).float().mean().item()


def at_answers(layer: Any, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """A layer evaluated at the c places from which answers are predicted, which is all that is
    needed of the last one: hidden states [c, D] after it, and attention weights [c, H, n]."""
    block, attention = layer.block, layer.block.self_attn
    value = attention.v_proj(block.input_layernorm(hidden))
    values = heads(value, attention.head_dim)
    weights, outputs = [], []
    for row, states in enumerate(hidden):
        places = batch.answers[batch.answers[:, 0] == row, 1]
        weight = attention_weights(layer, states[None], places)
        read = (weight @ values[row]).transpose(0, 1).flatten(1)
        outputs.append(states[places] + attention.o_proj(read))
        weights.append(weight.transpose(0, 1))
    output = torch.cat(outputs)
    return output + block.mlp(block.post_attention_layernorm(output)), torch.cat(weights)


def attention_weights(layer: Any, hidden: Tensor, places: Tensor) -> Tensor:
    """A causal layer's attention weights [H, c, n] from places [c] of hidden [1, n, D]."""
    queries = SequenceInfo(positions=places[None])
    scores: Tensor = layer.scores(hidden[:, places], queries, hidden, SequenceInfo())[0]
    future = torch.arange(hidden.shape[1]) > places[:, None]
    return scores.masked_fill(future, -torch.inf).softmax(-1)
