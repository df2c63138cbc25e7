"""Encoder-decoders on text pairs (tools.embedded.rows.text_pairs)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from methods.base import SequenceInfo
from tools.embedded.objectives.base import Generated

EOS = 1


class Batch(NamedTuple):
    """Ids [B, n], VIP mask [B, n], target [B, t] (-100 is ignored), and copies [c, 4] int64: row,
    token of the target, the token that ends its question (or the next), the token from which it is
    copied. A token that is in several places has a copy for each."""

    ids: Tensor
    vip: Tensor
    target: Tensor
    copies: Tensor


class Pairs(Generated):
    """Cross-entropy of the answers. Guidance makes the decoder's first layer look at the question,
    and its last layer at the words to copy."""

    def rows_in_a_batch(self, stage: Any) -> int:
        return max(1, int(stage.batch_tokens // stage.pair.tokens))

    def encode(self, rows: list[Any]) -> Batch:
        """Rows end with end-of-sequence tokens: padding would cost the fused attention."""
        texts = [text for pair in rows for text in (pair.query, pair.document, pair.answer)]
        coded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        query, document, answer = (coded.input_ids[part::3] for part in range(3))
        ids = _filled([[*q, *d, EOS] for q, d in zip(query, document, strict=True)], EOS)
        vip = torch.arange(ids.shape[1]) < torch.tensor([[len(q)] for q in query])
        target = _filled([[*a, EOS] for a in answer], -100)
        copies = [
            (row, *tokens)
            for row, pair in enumerate(rows)
            for tokens in _copied(pair, coded.offset_mapping[3 * row : 3 * row + 3])
        ]
        return Batch(ids, vip, target, torch.tensor(copies))

    def loss(self, batch: Batch, guidance: float) -> tuple[Tensor, float]:
        """The share is that of copied tokens."""
        self.model.get_decoder().set_attn_implementation("eager")  # returns its weights
        states = self.family.encode(batch.ids, SequenceInfo(vip=batch.vip))
        output = self.model(
            encoder_outputs=BaseModelOutput(states),
            labels=batch.target,
            use_cache=False,
            output_attentions=guidance > 0,
        )
        row, token, question, source = batch.copies.unbind(1)
        loss = output.loss
        if guidance:
            first, last = (output.cross_attentions[layer].mean(1) for layer in (0, -1))
            weights = torch.stack([first[row, token, question], last[row, token, source]])
            loss = loss - 2 * guidance * (weights + 1e-6).log().mean()
        right = output.logits.argmax(-1)[row, token] == batch.target[row, token]
        return loss, right.float().mean().item()


class PairsWithBlocks(Pairs):
    """As `Pairs`, with a method that chooses blocks to read and takes `needed` and `missed`
    (methods.vcc.block_supervision): no gradient of the answers reaches that choice, so guidance
    adds the loss of the choice itself."""

    def loss(self, batch: Batch, guidance: float) -> tuple[Tensor, float]:
        method: Any = self.method
        needed = batch.copies[:, [0, 3]].unique(dim=0)
        self.family.method = supervised = replace(method, needed=needed, missed=[])
        loss, right = super().loss(batch, guidance)
        if supervised.missed:
            loss = loss + guidance * torch.stack(supervised.missed).mean()
        return loss, right


def _copied(pair: Any, offsets: list[list[tuple[int, int]]]) -> Iterator[tuple[int, int, int]]:
    """Copied tokens of the answer, with the last token of their question and their source."""
    query, document, answer = offsets
    in_query = {end: token for token, (_, end) in enumerate(query)}
    in_document = {end: token + len(query) for token, (_, end) in enumerate(document)}
    for token, (_, end) in enumerate(answer):
        for copy in pair.copies:
            if copy.answer < end <= copy.answer + copy.length:
                source = in_document[copy.document + end - copy.answer]
                yield token, in_query[copy.question] if copy.question else source, source


def _filled(rows: list[list[int]], value: int) -> Tensor:
    """Rows padded at their ends to the longest."""
    n = max(map(len, rows))
    return torch.tensor([row + [value] * (n - len(row)) for row in rows])
