"""Questions over many paragraphs: HotpotQA (Yang et al., 2018, arXiv:1809.09600; distractor
setting) and WikiHop (Welbl et al., 2018, arXiv:1710.06481; QAngaroo v1.1), in VCC's formats.

Both layouts of HotpotQA are read: its own JSON (`_id`, context as pairs) and the hub's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from tasks.base import Constant, DataError, Encoded, Row, Tokenizer
from tasks.loading import formats, records
from tasks.loading.reader import Reader

Paragraphs = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class MultiHop(Reader):
    """Base class of the two tasks. `form` is one of formats.FORMS; t5 and roberta need the markers
    in `special_tokens` as single tokens."""

    form: str = "t5"
    embedded: str = "links"

    can_chat: ClassVar = True
    kinds: ClassVar = ("links",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("form", formats.FORMS)

    @property
    def layout(self) -> str:
        """`form`, or plain text for a decoder."""
        return "plain" if self.decoder else self.form

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The markers of `form`. A tokenizer that lacks them reads them as plain text."""
        return formats.SPECIAL.get(f"{self.benchmark}/{self.form}", ())

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        from tasks.generators import linked_paragraphs

        room = length - 64
        while True:
            try:
                links = linked_paragraphs.links(split, index, room, seed)
            except ValueError:
                least = length - room + linked_paragraphs.LEAST
                raise DataError(
                    f"length={length} is too short for paragraphs: {least} at least"
                ) from None
            record = self.record(links)
            excess = self.count_tokens(record) - length
            if excess <= 0:
                return [record]
            room -= excess

    def record(self, links: Any) -> dict[str, Any]:
        """A tasks.generators.linked_paragraphs.Links in the benchmark's columns."""
        raise NotImplementedError


@dataclass(frozen=True)
class HotpotQA(MultiHop):
    """The answer is a span, yes or no. `vip_context` adds the markers of titles and sentences to
    the VIP tokens (VCC's context_cls_is_important)."""

    vip_context: bool = False

    can_chat: ClassVar = True

    @property
    def answers(self) -> str:
        return "span" if self.form in ("roberta", "squad") else "text"

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        row_id = records.text(record, "_id" if "_id" in record else "id", where)
        question = records.text(record, "question", where)
        answer = self.answer(record, "answer", where, split)
        query, context = formats.hotpotqa(self.layout, question, _paragraphs(record, where))
        return Row(row_id, query, context, (answer,), support=_support(record, where))

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        return formats.span_target(row, encoded, tokenizer, self.truncation_side)

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        encoded = super().encode(row, tokenizer, length)
        if not self.vip_context or self.decoder:
            return encoded
        markers = {_marker_id(tokenizer, marker) for marker in ("[ts]", "[ss]")} - {None}
        vip = [vip or i in markers for i, vip in zip(encoded.ids, encoded.vip, strict=True)]
        return replace(encoded, vip=vip)

    def record(self, links: Any) -> dict[str, Any]:
        return {
            "question": links.question,
            "answer": links.answer,
            "supporting_facts": {
                "title": [title for title, _ in links.supporting],
                "sent_id": [number for _, number in links.supporting],
            },
            "context": {
                "title": [title for title, _ in links.paragraphs],
                # As in the benchmark, sentences after the first begin with a blank.
                "sentences": [
                    [sentences[0], *(f" {sentence}" for sentence in sentences[1:])]
                    for _, sentences in links.paragraphs
                ],
            },
        }


@dataclass(frozen=True)
class WikiHop(MultiHop):
    """Asks which of the candidates has a given relation to a subject."""

    @property
    def answers(self) -> str:
        return "choice" if self.form == "roberta" else "text"

    def spell(self, row: Row, answer: str) -> str:
        return formats.query_choices(row.query)[int(answer)] if self.answers == "choice" else answer

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        return formats.choice_target(row)

    def options(self, rows: Sequence[Row]) -> list[Constant]:
        return formats.by_position(partial(formats.wikihop_candidates, self.layout), rows)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        candidates, supports = (_texts(record, name, where) for name in ("candidates", "supports"))
        answer = self.answer(record, "answer", where, split)
        if answer not in candidates:
            raise DataError(f"{where}: answer '{answer}' is none of {len(candidates)} candidates")
        question = records.text(record, "query", where)
        query, context = formats.wikihop(self.layout, question, candidates, supports)
        return Row(records.text(record, "id", where), query, context, (answer,))

    def record(self, links: Any) -> dict[str, Any]:
        from tasks.generators import linked_paragraphs

        return {
            "query": f"{linked_paragraphs.RELATION} {links.subject}",
            "answer": links.home,
            "candidates": list(links.candidates),
            "supports": links.supports,
        }


def _paragraphs(record: dict[str, Any], where: str) -> Paragraphs:
    """(title, sentences) of the context, from a dict of two columns or from a list of pairs."""
    context = record.get("context")
    if isinstance(context, dict):
        titles, texts = context.get("title"), context.get("sentences")
        if isinstance(titles, list) and isinstance(texts, list) and len(titles) == len(texts):
            context = list(zip(titles, texts, strict=True))
    if not isinstance(context, list) or not context or not all(map(_is_paragraph, context)):
        raise DataError(f"{where}: column 'context' holds no paragraphs of a title and sentences")
    return [(title, list(sentences)) for title, sentences in context]


def _support(record: dict[str, Any], where: str) -> tuple[tuple[str, int], ...]:
    """(title, sentence number) of the supporting facts, from a dict of two columns or from a list
    of pairs; none if the column is missing, as in the test split."""
    facts = record.get("supporting_facts") or []
    if isinstance(facts, dict):
        facts = list(zip(facts.get("title", ()), facts.get("sent_id", ()), strict=False))
    match facts:
        case [*pairs] if all(
            isinstance(pair, list | tuple) and [type(one) for one in pair] == [str, int]
            for pair in pairs
        ):
            return tuple((title, number) for title, number in pairs)
    raise DataError(f"{where}: column 'supporting_facts' holds no titles with numbers of sentences")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_paragraph(value: Any) -> bool:
    match value:
        case [str(), sentences]:
            return _is_texts(sentences)
    return False


def _texts(record: dict[str, Any], column: str, where: str) -> Sequence[str]:
    texts: Sequence[str] = record.get(column) or ()
    if not texts or not _is_texts(texts):
        raise DataError(f"{where}: column '{column}' holds no list of texts")
    return texts


def _marker_id(tokenizer: Tokenizer, marker: str) -> int | None:
    """The id of a marker, None for a tokenizer in which it is several tokens."""
    ids = tokenizer(marker, add_special_tokens=False)["input_ids"]
    return ids[0] if len(ids) == 1 else None
