"""Batches of text pairs to train on, with the tokens that answers copy from their documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

EOS = 1


class Batch(NamedTuple):
    """Ids [B, n], VIP mask [B, n], target [B, t] (-100 is ignored), and copies [c, 4] int64: row,
    token of the target, the token that ends its question (or the next), the token that it is
    copied from. A token that stands in several places has a copy for each."""

    ids: Tensor
    vip: Tensor
    target: Tensor
    copies: Tensor


def batches(stage: Any, tokenizer: Any, pair: Any, seed: int, step: int) -> Iterator[Batch]:
    """The batches of a stage from this step on. In `single` of them a row asks one question.

    There is no padding, which would cost the fused attention: rows end with end-of-sequence tokens.
    """
    count = max(1, stage.batch_tokens // stage.pair.tokens)
    while True:
        options = dict(stage.pair)
        if step * stage.single % 1 + stage.single >= 1:
            options["questions"] = 1
        pairs = [pair(step * count + row, seed, **options) for row in range(count)]
        texts = [text for made in pairs for text in (made.query, made.document, made.answer)]
        coded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        query, document, answer = (coded.input_ids[part::3] for part in range(3))
        ids = _filled([[*q, *d, EOS] for q, d in zip(query, document, strict=True)], EOS)
        vip = torch.arange(ids.shape[1]) < torch.tensor([[len(q)] for q in query])
        target = _filled([[*a, EOS] for a in answer], -100)
        copies = [
            (row, *tokens)
            for row, made in enumerate(pairs)
            for tokens in _copied(made, coded.offset_mapping[3 * row : 3 * row + 3])
        ]
        yield Batch(ids, vip, target, torch.tensor(copies))
        step += 1


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
    n = max(map(len, rows))
    return torch.tensor([row + [value] * (n - len(row)) for row in rows])
