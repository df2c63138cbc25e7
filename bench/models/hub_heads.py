"""BERT and RoBERTa with the heads of transformers: question answering (a span of the context) and
multiple choice, as in checkpoints of the hub.

Inputs get the form on which these heads are trained, with the tokenizer's CLS and SEP; the inputs
of tasks hold neither, so a row grows by up to four tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
)

from bench.models.bert import BertFamily, RobertaFamily, first_valid
from bench.models.heads import ChoiceHead, best_span
from bench.models.hf import all_valid
from methods.base import SequenceInfo


class QuestionAnswering(BertFamily):
    """Answers with the best span of the tokens that are not VIP: the question is VIP."""

    answers = "span"
    may_lack: ClassVar[tuple[str, ...]] = ("qa_outputs.",)
    separators: ClassVar[int] = 1

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D], read as CLS, the question, SEP, the context, SEP."""
        cls, sep = _special(self.tokenizer)
        if cls is None or sep is None or sequence.vip is None:
            return super().encode(ids, sequence)
        batch, n = ids.shape
        between = self.separators
        count = all_valid(ids, sequence).sum(1, keepdim=True)
        question = sequence.vip.long().cumprod(1).sum(1, keepdim=True)
        at = torch.arange(n, device=ids.device).expand(batch, n)
        place = at + 1 + between * (at >= question)
        longer = torch.arange(n + between + 2, device=ids.device).expand(batch, -1)
        pair = torch.full_like(longer, sep).scatter(1, place, ids)
        pair[:, 0] = cls
        pair = torch.where(longer == count + 1 + between, sep, pair)
        valid = longer < count + 2 + between
        vip = longer < question + 1 + between
        hidden = super().encode(pair, SequenceInfo(valid=valid, vip=vip))
        return hidden.gather(1, place[..., None].expand(-1, -1, hidden.shape[-1]))

    def segments(self, ids: Tensor, sequence: SequenceInfo) -> Tensor | None:
        return None if sequence.vip is None else _second_segment(self, ~sequence.vip)

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, 2·n]: scores of each token as the first and as the last of the span."""
        return self._ends(ids, sequence).flatten(1)

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """[B, 2]: the first and last token of the best span of at most `max_new_tokens`."""
        first, last = self._ends(ids, sequence).float().unbind(1)
        return torch.stack(best_span(first, last, max_new_tokens), 1)

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        self.check_trained()
        spans = self.generate_ids(ids, sequence, max_new_tokens).tolist()
        return [
            self.tokenizer.decode(row[first : last + 1], skip_special_tokens=True).strip()
            for row, (first, last) in zip(ids.tolist(), spans, strict=True)
        ]

    def _ends(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """[B, 2, n]; lowest at padding and in the question."""
        excluded = ~all_valid(ids, sequence)
        if sequence.vip is not None:
            excluded = excluded | sequence.vip
        ends: Tensor = self.model.qa_outputs(self.encode(ids, sequence)).transpose(1, 2)
        return ends.masked_fill(excluded[:, None], torch.finfo(ends.dtype).min)


class MultipleChoice(ChoiceHead):
    """Scores each choice in a separate sequence: CLS, the context, SEP, the question and the
    choice, SEP. Marks show the choices in a task's input, and never enter the model."""

    may_lack: ClassVar[tuple[str, ...]] = ("bert.pooler.", "classifier.")
    reads = ("[question]", "[/question]", "[ent]", "[/ent]")
    trained_marks = False

    def segments(self, ids: Tensor, sequence: SequenceInfo) -> Tensor | None:
        if sequence.vip is None:
            return None
        return _second_segment(self, sequence.vip & (sequence.vip.cumprod(1) == 0))

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, most choices of a row]; lowest for choices that a row lacks."""
        valid = all_valid(ids, sequence)
        vip = torch.zeros_like(valid) if sequence.vip is None else sequence.vip
        rows = [
            self._sequences(row[keep].tolist(), vips[keep].tolist())
            for row, keep, vips in zip(ids, valid, vip, strict=True)
        ]
        flat = [one for row in rows for one in row]
        longest, device = max(len(tokens) for tokens, _ in flat), ids.device
        lengths = torch.tensor([len(tokens) for tokens, _ in flat], device=device)
        at = torch.arange(longest, device=device)
        choices = torch.stack(
            [pad(torch.tensor(tokens), (0, longest - len(tokens))) for tokens, _ in flat]
        ).to(device)
        context = torch.tensor([size for _, size in flat], device=device)[:, None]
        info = SequenceInfo(valid=at < lengths[:, None], vip=(at == 0) | (at >= context))
        first = first_valid(self.encode(choices, info), info)[:, None]
        scores: Tensor = self.model.classifier(self._pooled(first))[:, 0]
        counts = torch.tensor([len(row) for row in rows], device=device)
        exists = torch.arange(int(counts.max()), device=device) < counts[:, None]
        logits = scores.new_full(exists.shape, torch.finfo(scores.dtype).min)
        return logits.masked_scatter(exists, scores)

    def _sequences(self, row: list[int], vip: list[bool]) -> list[tuple[list[int], int]]:
        """For each choice its sequence, and the index at which the question begins."""
        context = [token for token, is_vip in zip(row, vip, strict=True) if not is_vip]
        question, *choices = _split(
            [token for token, is_vip in zip(row, vip, strict=True) if is_vip], self.marks["[ent]"]
        )
        marks = set(self.marks.values())
        begin, end = ([] if token is None else [token] for token in _special(self.tokenizer))
        first = [*begin, *context, *end]
        return [
            (first + [t for t in (*question, *choice) if t not in marks] + end, len(first))
            for choice in choices or [[]]
        ]

    def _pooled(self, first: Tensor) -> Any:
        return self.model.dropout(self.model.base_model.pooler(first))


def _special(tokenizer: Any) -> tuple[int | None, int | None]:
    """The ids of CLS and SEP; None if the tokenizer lacks them."""
    return getattr(tokenizer, "cls_token_id", None), getattr(tokenizer, "sep_token_id", None)


def _second_segment(family: BertFamily, second: Tensor) -> Tensor | None:
    """Token types of an input in which `second` [B, n] is True for the second text."""
    return second.long() if family.model.config.type_vocab_size > 1 else None


def _split(tokens: list[int], mark: int) -> list[list[int]]:
    """The parts before, between and after the marks."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == mark:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


class BertQuestionAnswering(QuestionAnswering):
    architecture = BertForQuestionAnswering


class RobertaQuestionAnswering(QuestionAnswering, RobertaFamily):
    architecture = RobertaForQuestionAnswering
    separators = 2
    segments = RobertaFamily.segments  # one type: RoBERTa's tokenizers give no other


class BertMultipleChoice(MultipleChoice):
    architecture = BertForMultipleChoice


class RobertaMultipleChoice(MultipleChoice, RobertaFamily):
    architecture = RobertaForMultipleChoice
    segments = RobertaFamily.segments
    may_lack = ("roberta.pooler.", "classifier.")
