"""VCC's inputs (Zeng et al., 2023, arXiv:2305.04241, appendix; src/roberta and src/t5 of its code).

Markers in square brackets stand between the parts of an input, and are added to the tokenizer as
tokens of their own: `SPECIAL` lists them by form. The first text of each pair is the query, whose
tokens are VIP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tasks.base import DataError, Encoded, Row, Tokenizer

UNKNOWN = -100
KINDS = ("no", "yes")
"""Answers of a span head that are no span, by their number; the next number is a span."""

FORMS = ("t5", "roberta", "plain")
SPECIAL = {
    "hotpotqa/t5": ("[qs]", "[qe]", "[ts]", "[te]", "[ss]"),
    "hotpotqa/roberta": ("[cls]", "[qs]", "[qe]", "[ts]", "[te]", "[ss]"),
    "wikihop/t5": ("[question]", "[candidate]", "[support]"),
    "wikihop/roberta": ("[question]", "[/question]", "[ent]", "[/ent]", "[support]"),
    "quality/roberta": ("[question]", "[/question]", "[ent]", "[/ent]"),
}


def hotpotqa(
    form: str, question: str, paragraphs: Sequence[tuple[str, Sequence[str]]]
) -> tuple[str, str]:
    """(query, context) of a question and its paragraphs, each a title and sentences. The span
    head (roberta) classifies at [cls] and finds the answer between [ss] marks."""
    if form == "plain":
        return question, "\n\n".join(f"{title}\n{''.join(said)}" for title, said in paragraphs)
    query = f"[qs]{question}[qe]"
    context = "".join(
        f"[ts]{title}[te]" + "".join(f"[ss]{sentence}" for sentence in said)
        for title, said in paragraphs
    )
    return (f"[cls]{query}" if form == "roberta" else query), context


def wikihop(
    form: str, question: str, candidates: Sequence[str], supports: Sequence[str]
) -> tuple[str, str]:
    """(query, context) of a question with its candidates, and the supporting texts."""
    if form == "plain":
        return f"{question}\n" + "\n".join(candidates), "\n\n".join(supports)
    context = "".join(f"[support]{text}" for text in supports)
    if form == "roberta":
        return choices(question, candidates), context
    return f"[question]{question}" + "".join(f"[candidate]{one}" for one in candidates), context


def offered(form: str, query: str) -> list[str]:
    """The candidates in a query of `wikihop`."""
    if form == "roberta":
        return marked(query)
    return query.split("\n" if form == "plain" else "[candidate]")[1:]


def choices(question: str, candidates: Sequence[str]) -> str:
    """The query that a multiple-choice head reads: it scores the hidden state at each [ent]."""
    marked = "".join(f"[ent]{one}[/ent]" for one in candidates)
    return f"[question]{question}[/question]{marked}"


def chosen(query: str, number: str) -> str:
    """The text of one of the candidates in a query of `choices`."""
    return marked(query)[int(number)]


def nth(candidates: Sequence[Sequence[str]]) -> list[list[str]]:
    """For each place the candidate in it of each row, the last one of a row with fewer."""
    most = max(map(len, candidates))
    return [[one[min(at, len(one) - 1)] for one in candidates] for at in range(most)]


def choice(row: Row) -> list[int]:
    """The number of a row's first reference among the candidates of its query."""
    candidates, answer = marked(row.query), row.references[0]
    if answer not in candidates:
        raise DataError(
            f"row {row.id}: answer '{answer}' is none of its {len(candidates)} candidates"
        )
    return [candidates.index(answer)]


def marked(query: str) -> list[str]:
    """The candidates in a query of `choices`."""
    return [one.removesuffix("[/ent]") for one in query.split("[ent]")[1:]]


def span(row: Row, encoded: Encoded, tokenizer: Tokenizer, cut: str) -> list[int]:
    """What a span head learns: see tasks.base.Task.target. The span is where the answer first
    stands in a sentence that the row rests on, else where it first stands at all (VCC takes the
    first of all); `cut` is the side of the document that was cut."""
    found = tokenizer(row.document, add_special_tokens=False, return_offsets_mapping=True)
    offsets = found["offset_mapping"]
    before = len(tokenizer(row.query, add_special_tokens=False)["input_ids"])
    end = int(tokenizer.eos_token_id is not None)
    kept = len(encoded.ids) - before - end
    first = len(offsets) - kept if cut == "left" else 0
    seen = list(enumerate(offsets[first : first + kept], before))

    answer = row.references[0]
    kind = KINDS.index(answer.lower()) if answer.lower() in KINDS else len(KINDS)
    parts = _parts(row.document)
    ends = [UNKNOWN, UNKNOWN]
    if kind == len(KINDS):
        # False comes before True: parts that the row rests on are asked first.
        order = sorted(parts, key=lambda part: part[:2] not in row.support)
        places = (_place(answer, row.document, a, b) for _, _, a, b in order)
        begin, stop = next(filter(None, places), (0, 0))
        whole = sum(a < stop and b > begin for a, b in offsets)
        over = [at for at, (a, b) in seen if a < stop and b > begin]
        if over and len(over) == whole:
            ends = [over[0], over[-1]]

    begins = {}
    supported = {title for title, _ in row.support}
    for title, number, a, _ in parts if row.support else ():
        begins[a] = int(title in supported if number < 0 else (title, number) in row.support)
    marks = [UNKNOWN] * len(encoded.ids)
    for at, (a, b) in seen:
        # A mark ends where its part begins.
        if row.document.startswith("[", a) and b in begins:
            marks[at] = begins[b]
    return [kind, *ends, *marks]


def _parts(document: str) -> list[tuple[str, int, int, int]]:
    """(title, number, begin, end) of each title (number -1) and sentence of a marked context."""
    marks = [*re.finditer(r"\[(ts|ss)\]", document)]
    stops = [*(mark.start() for mark in marks[1:]), len(document)]
    parts, title, number = [], "", -1
    for mark, stop in zip(marks, stops, strict=True):
        if mark[1] == "ts":
            title, number = document[mark.end() : stop].split("[te]")[0], -1
            stop = mark.end() + len(title)
        else:
            number += 1
        parts.append((title, number, mark.end(), stop))
    return parts


def _place(answer: str, document: str, begin: int, end: int) -> tuple[int, int] | None:
    """Where the answer stands first in document[begin:end], preferably as whole words."""
    words = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)").search(document, begin, end)
    if words:
        return words.span()
    at = document.find(answer, begin, end) if answer else -1
    return (at, at + len(answer)) if at >= 0 else None
