"""RoBERTa with the heads that VCC trains (Zeng et al., arXiv 2305.04241, §5 and appendix): one
that scores the choices of a question (QuALITY, WikiHop), one that finds a span (HotpotQA).

Both use the hidden states at marks in the input, which tasks/loading/formats.py inserts; marks that
a tokenizer lacks are added to it, with embeddings drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, pad
from transformers import RobertaModel, RobertaPreTrainedModel

from bench.models.base import Spec
from bench.models.bert import BertFamily, RobertaFamily, first_valid
from bench.models.hf import all_valid
from methods.base import Method, SequenceInfo

KINDS = ("no", "yes")
"""Answers of the span head that aren't spans; the third kind is a span."""


class RobertaWithHeads(RobertaPreTrainedModel):  # type: ignore[misc]
    """The encoder with one linear layer for each of `outputs`, as in a checkpoint."""

    outputs: ClassVar[Mapping[str, int]]
    # A checkpoint may hold the other head as well.
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^heads\."]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        sizes = self.outputs.items()
        self.heads = nn.ModuleDict({k: nn.Linear(config.hidden_size, n) for k, n in sizes})
        self.post_init()


class RobertaForChoice(RobertaWithHeads):
    outputs: ClassVar[Mapping[str, int]] = {"choice": 1}


class RobertaForSpan(RobertaWithHeads):
    outputs: ClassVar[Mapping[str, int]] = {"kind": 3, "ends": 2, "paragraph": 1, "sentence": 1}


class Marked(BertFamily):
    """A BERT or RoBERTa whose inputs hold marks.

    reads          the marks that the head needs
    marks          the token id of each mark, those of `reads` included
    trained_marks  whether the head uses the hidden states at marks, which are then trained with it
    """

    may_lack: ClassVar[tuple[str, ...]] = ("heads.",)
    reads: ClassVar[tuple[str, ...]]
    trained_marks: ClassVar[bool] = True

    marks: Mapping[str, int]

    @classmethod
    def load(cls, spec: Spec, method: Method, dtype: str, device: str) -> Self:
        """Raises ValueError with one line when the folder is no checkpoint of the family."""
        family = super().load(spec, method, dtype, device)
        tokenizer, model = family.tokenizer, family.model
        marks = sorted({*spec.marks, *cls.reads})
        if new := [mark for mark in marks if mark not in tokenizer.get_vocab()]:
            tokenizer.add_tokens(new, special_tokens=True)
            if len(tokenizer) > model.config.vocab_size:
                with torch.random.fork_rng():
                    torch.manual_seed(spec.seed)
                    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
            if spec.config is None and cls.trained_marks:
                family.lacks = [*family.lacks, f"token {new[0]}"]
        family.marks = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks}
        return family

    @classmethod
    def tiny(cls, method: Method, seed: int = 0) -> Self:
        """With marks as ids 3, 4, …"""
        family = super().tiny(method, seed)
        family.marks = {mark: 3 + at for at, mark in enumerate(cls.reads)}
        return family

    def is_mark(self, mark: str, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """[B, n] bool: True where the token is this mark."""
        return (ids == self.marks[mark]) & all_valid(ids, sequence)


class ChoiceHead(Marked):
    """The answer is the number of the best choice, from 0. Choices that a row lacks but another row
    of the batch has get the lowest score."""

    answers = "choice"

    def learned(
        self, ids: Tensor, sequence: SequenceInfo, target: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Without label smoothing: the lowest scores of choices that a row lacks would dominate."""
        return super().learned(ids, sequence, target)

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        self.check_trained()
        return [str(n) for n in self.generate_ids(ids, sequence, 1)[:, 0].tolist()]


class RobertaChoice(ChoiceHead, RobertaFamily):
    """Scores the hidden state at each [ent]."""

    architecture = RobertaForChoice
    reads = ("[ent]",)

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, most choices of a row]. Raises ValueError for a row without any."""
        scores = self.model.heads["choice"](self.encode(ids, sequence))[..., 0]
        marks = self.is_mark("[ent]", ids, sequence)
        count = marks.sum(1)
        if not bool(count.all()):
            raise ValueError("a row has no [ent]: nothing to choose from")
        exists = torch.arange(int(count.max()), device=ids.device) < count[:, None]
        logits: Tensor = scores.new_full(exists.shape, torch.finfo(scores.dtype).min)
        logits = logits.masked_scatter(exists, scores[marks])
        return logits


class RobertaSpan(Marked, RobertaFamily):
    """Answers no, yes, or a span of tokens that are not VIP: three scores at the row's first token,
    and at every token a score as the first and one as the last token of the span.

    A target is [B, 3 + n]: 0 no, 1 yes or 2 a span; its first and last token; and for each mark
    whether the paragraph or sentence that begins there is needed. -100 is ignored."""

    answers = "span"
    architecture = RobertaForSpan
    reads = ("[ts]", "[ss]")

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, 3]: no, yes, a span."""
        logits: Tensor = self._kinds(self.encode(ids, sequence), sequence)
        return logits

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        """[B, 2, n]: scores of each token as the first and as the last of the span."""
        return self._ends(self.encode(ids, sequence), ids, sequence)

    def loss(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        return self.learned(ids, sequence, target)[0]

    def learned(
        self, ids: Tensor, sequence: SequenceInfo, target: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """VCC's loss, without label smoothing: (first + last) / 2 + kind + sentences + paragraphs;
        and the share of rows with the right kind and, for spans, the right first and last token."""
        hidden = self.encode(ids, sequence)
        kind, ends, needed = target[:, :1], target[:, 1:3], target[:, 3:]
        kinds, places = self._kinds(hidden, sequence)[:, None], self._ends(hidden, ids, sequence)
        total = _cross_entropy(kinds, kind)
        # The mean over a row's first and last token is half the sum of both.
        total = total + _cross_entropy(places, ends)
        for head, mark in (("paragraph", "[ts]"), ("sentence", "[ss]")):
            labelled = self.is_mark(mark, ids, sequence) & (needed >= 0)
            if bool(labelled.any()):
                scores = self.model.heads[head](hidden)[..., 0][labelled]
                labels = needed[labelled].to(scores.dtype)
                total = total + binary_cross_entropy_with_logits(scores, labels)
        right = torch.cat((kinds.argmax(-1) == kind, (places.argmax(-1) == ends) | (ends < 0)), 1)
        return total, right.all(1).float().mean()

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """[B, 3]: the likeliest kind, and the first and last token of the best span of at most
        `max_new_tokens`."""
        hidden = self.encode(ids, sequence)
        kind = self._kinds(hidden, sequence).argmax(-1)
        first, last = self._ends(hidden, ids, sequence).float().unbind(1)
        return torch.stack((kind, *best_span(first, last, max_new_tokens)), 1)

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        self.check_trained()
        answers = self.generate_ids(ids, sequence, max_new_tokens).tolist()
        return [
            KINDS[kind]
            if kind < len(KINDS)
            else self.tokenizer.decode(row[first : last + 1], skip_special_tokens=True).strip()
            for row, (kind, first, last) in zip(ids.tolist(), answers, strict=True)
        ]

    def _kinds(self, hidden: Tensor, sequence: SequenceInfo) -> Any:
        return self.model.heads["kind"](first_valid(hidden, sequence))

    def _ends(self, hidden: Tensor, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """[B, 2, n]; lowest where no span may begin or end: padding, VIP tokens and marks."""
        excluded = ~all_valid(ids, sequence)
        for mark in self.marks:
            excluded = excluded | self.is_mark(mark, ids, sequence)
        if sequence.vip is not None:
            excluded = excluded | sequence.vip
        ends: Tensor = self.model.heads["ends"](hidden).transpose(1, 2)
        return ends.masked_fill(excluded[:, None], torch.finfo(ends.dtype).min)


def best_span(first: Tensor, last: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Scores [B, n] of each token as the first and as the last of a span → the first and last token
    [B] of the best span of at most `longest`."""
    n = first.shape[1]
    longest = max(1, min(longest, n))
    lasts = pad(last, (0, longest - 1), value=torch.finfo(last.dtype).min).unfold(1, longest, 1)
    best = (first[..., None] + lasts).flatten(1).argmax(1)  # of [n, longest]
    begin = best // longest
    return begin, (begin + best % longest).clamp(max=n - 1)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the targets [B, t] of logits [B, t, classes] that aren't -100; 0 without any."""
    if bool((target == -100).all()):
        return logits.sum() * 0
    return cross_entropy(logits.flatten(0, 1), target.flatten())
