"""How a causal model is trained on questions about one record: its batches and its loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bench.models.base import Family
from bench.models.hf import heads
from methods.base import Sequence


class Batch(NamedTuple):
    """Ids [B, n], and what is answered in them, [c, 4] int64: row, the token that is read when an
    answer's next token is chosen, that next token, the token that it is copied from."""

    ids: Tensor
    answers: Tensor


def batches(stage: Any, tokenizer: Any, pair: Any, seed: int, step: int) -> Iterator[Batch]:
    """The batches of a stage from this step on. In `single` of them a row asks one question.

    Rows are padded at their ends, which no token before reads.
    """
    end = tokenizer.eos_token_id
    while True:
        options = dict(stage.pair)
        if step * stage.single % 1 + stage.single >= 1:
            options["questions"] = 1
        rows, answers = [], []
        for row in range(stage.rows):
            ids: list[int] = []
            found: dict[int, int] = {}
            for asked in pair(step * stage.rows + row, seed, **options):
                text = tokenizer(
                    asked.text, add_special_tokens=not ids, return_offsets_mapping=True
                )
                found = found or {at: token for token, (at, _) in enumerate(text.offset_mapping)}
                ids += text.input_ids
                source = found[asked.source]
                answer = tokenizer(asked.answer, add_special_tokens=False).input_ids
                for place, token in enumerate([*answer, end]):
                    answers.append((row, len(ids) - 1, token, source + place))
                    ids.append(token)
            rows.append(ids)
        n = max(map(len, rows))
        padded = [row + [end] * (n - len(row)) for row in rows]
        yield Batch(torch.tensor(padded), torch.tensor(answers))
        step += 1


def measure(family: Family, batch: Batch, guidance: float) -> tuple[Tensor, float]:
    """The loss of the answers' tokens alone, and the share of them that were right.

    Guidance adds what keeps a model off the long plateau before retrieval by content: how little
    the last layer attends to the token to copy.
    """
    model: Any = family.model
    _, _, wanted, source = batch.answers.unbind(1)
    hidden, sequence = model.model.embed_tokens(batch.ids), Sequence(causal=True)
    *before, last = family.layers
    for layer in before:
        hidden = layer(hidden, sequence)
    hidden, looks = answered(last, hidden, batch)
    logits = model.lm_head(model.model.norm(hidden))
    loss = cross_entropy(logits, wanted)
    if guidance:
        found = looks.gather(2, source[:, None, None].expand(-1, looks.shape[1], 1))[..., 0]
        loss = loss - guidance * (found + 1e-6).log().mean()
    return loss, (logits.argmax(-1) == wanted).float().mean().item()


def answered(layer: Any, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """A layer on the answers' tokens alone, which is all that an answer needs of the last one:
    their hidden states [c, D] after it, and where its heads look, [c, H, n]."""
    block, attention = layer.block, layer.block.self_attn
    value = attention.v_proj(block.input_layernorm(hidden))
    values = heads(value, value.shape[-1] // attention.head_dim)
    looks, said = [], []
    for row, own in enumerate(hidden):
        tokens = batch.answers[batch.answers[:, 0] == row, 1]
        look = looked(layer, own[None], tokens)
        said.append(own[tokens] + attention.o_proj((look @ values[row]).transpose(0, 1).flatten(1)))
        looks.append(look.transpose(0, 1))
    output = torch.cat(said)
    return output + block.mlp(block.post_attention_layernorm(output)), torch.cat(looks)


def looked(layer: Any, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Where a layer's heads look from `tokens` [c] of hidden [1, n, D]: [H, c, n], summing to 1."""
    told = Sequence(positions=tokens[None])
    scores: Tensor = layer.scores(hidden[:, tokens], told, hidden, Sequence())[0]
    unseen = torch.arange(hidden.shape[1]) > tokens[:, None]
    return scores.masked_fill(unseen, -torch.inf).softmax(-1)
