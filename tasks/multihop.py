"""Questions over many paragraphs: HotpotQA (Yang et al., 2018, arXiv:1809.09600; distractor
setting) and WikiHop (Welbl et al., 2018, arXiv:1710.06481; QAngaroo v1.1), in VCC's formats.

Both layouts of HotpotQA are read: its own json (`_id`, context as pairs) and the hub's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tasks import formats, sources
from tasks.base import DataError, Encoded, Row, Tokenizer
from tasks.rows import Reader

Paragraphs = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class MultiHop(Reader):
    """What the two share: `form` is one of formats.FORMS. t5 and roberta need the markers of
    `special_tokens` as tokens of their own."""

    form: str = "t5"
    embedded: str = "links"

    kinds: ClassVar = ("links",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("form", formats.FORMS)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Markers that stay readable text for a tokenizer without them."""
        return formats.SPECIAL.get(f"{self.benchmark}/{self.form}", ())

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        from tasks import links

        room = length - 64
        while True:
            try:
                found = links.links(split, index, room, seed)
            except ValueError as error:
                raise DataError(f"length={length} is too short for paragraphs: {error}") from None
            record = self.record(found)
            over = self.count(record) - length
            if over <= 0:
                return [record]
            room -= over

    def record(self, found: Any) -> dict[str, Any]:
        """Links in the benchmark's own columns."""
        raise NotImplementedError


@dataclass(frozen=True)
class HotpotQA(MultiHop):
    """Which span, or yes or no. `vip_context` adds the marks of titles and sentences to the VIP
    tokens (VCC's context_cls_is_important)."""

    vip_context: bool = False

    @property
    def answers(self) -> str:
        return "span" if self.form == "roberta" else "text"

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        row_id = sources.text(record, "_id" if "_id" in record else "id", where)
        question = sources.text(record, "question", where)
        answer = self.answer(record, "answer", where, split)
        query, context = formats.hotpotqa(self.form, question, _paragraphs(record, where))
        return Row(row_id, query, context, (answer,), support=_support(record, where))

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        return formats.span(row, encoded, tokenizer, self.truncation_side)

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        found = super().encode(row, tokenizer, length)
        if not self.vip_context:
            return found
        marks = {_id(tokenizer, mark) for mark in ("[ts]", "[ss]")} - {None}
        vip = [vip or i in marks for i, vip in zip(found.ids, found.vip, strict=True)]
        return replace(found, vip=vip)

    def record(self, found: Any) -> dict[str, Any]:
        return {
            "question": found.question,
            "answer": found.answer,
            "supporting_facts": {
                "title": [title for title, _ in found.supporting],
                "sent_id": [number for _, number in found.supporting],
            },
            "context": {
                "title": [title for title, _ in found.paragraphs],
                # As in the benchmark, a sentence but the first begins with its blank.
                "sentences": [
                    [said[0], *(f" {sentence}" for sentence in said[1:])]
                    for _, said in found.paragraphs
                ],
            },
        }


@dataclass(frozen=True)
class WikiHop(MultiHop):
    """Which of the candidates stands in a relation to a subject."""

    @property
    def answers(self) -> str:
        return "choice" if self.form == "roberta" else "text"

    def spell(self, row: Row, answer: str) -> str:
        return formats.chosen(row.query, answer) if self.answers == "choice" else answer

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        return formats.choice(row)

    def constants(self, rows: Sequence[Row]) -> list[list[str]]:
        """The candidate in a certain place, and the commonest right answers."""
        given = [formats.offered(self.form, row.query) for row in rows]
        return formats.nth(given) + super().constants(rows)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        candidates, supports = (_texts(record, name, where) for name in ("candidates", "supports"))
        answer = self.answer(record, "answer", where, split)
        if answer not in candidates:
            raise DataError(f"{where}: answer '{answer}' is none of {len(candidates)} candidates")
        question = sources.text(record, "query", where)
        query, context = formats.wikihop(self.form, question, candidates, supports)
        return Row(sources.text(record, "id", where), query, context, (answer,))

    def record(self, found: Any) -> dict[str, Any]:
        from tasks import links

        return {
            "query": f"{links.RELATION} {found.subject}",
            "answer": found.home,
            "candidates": list(found.candidates),
            "supports": found.supports,
        }


def _paragraphs(record: dict[str, Any], where: str) -> Paragraphs:
    """(title, sentences) of the context, from a dict of two columns or from a list of pairs."""
    context = record.get("context")
    if isinstance(context, dict):
        titles, said = context.get("title"), context.get("sentences")
        if isinstance(titles, list) and isinstance(said, list) and len(titles) == len(said):
            context = list(zip(titles, said, strict=True))
    if not isinstance(context, list) or not context or not all(map(_is_paragraph, context)):
        raise DataError(f"{where}: column 'context' holds no paragraphs of a title and sentences")
    return [(title, list(said)) for title, said in context]


def _support(record: dict[str, Any], where: str) -> tuple[tuple[str, int], ...]:
    """(title, sentence number) of the supporting facts, from a dict of two columns or from a list
    of pairs; none where the column is missing, as in the test split."""
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


def _is_paragraph(found: Any) -> bool:
    return (
        isinstance(found, list | tuple)
        and len(found) == 2
        and isinstance(found[0], str)
        and isinstance(found[1], list)
        and all(isinstance(sentence, str) for sentence in found[1])
    )


def _texts(record: dict[str, Any], column: str, where: str) -> Sequence[str]:
    found = record.get(column)
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise DataError(f"{where}: column '{column}' holds no list of texts")
    return found


def _id(tokenizer: Tokenizer, mark: str) -> int | None:
    """The id of a mark that is one token, None for a tokenizer that spells it."""
    ids = tokenizer(mark, add_special_tokens=False)["input_ids"]
    return ids[0] if len(ids) == 1 else None
