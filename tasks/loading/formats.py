"""VCC's input formats (Zeng et al., 2023, arXiv:2305.04241, appendix; src/roberta and src/t5 of its
code), and the targets of its classification heads.

Markers in square brackets separate the parts of an input and are added to the tokenizer as single
tokens: `SPECIAL` lists them by format. The first text of each pair is the query, whose tokens are
VIP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from tasks.base import Constant, DataError, Encoded, Row, Tokenizer

UNKNOWN = -100
KINDS = ("no", "yes")
"""Answers of a span head that are no span, by their class; the next class is a span."""

FORMS = ("t5", "roberta", "plain", "squad")
"""t5 and roberta are VCC's; squad is plain, for a head that finds a span of the context."""
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
    head (roberta) classifies at [cls] and finds the answer between [ss] markers."""
    if form in ("plain", "squad"):
        return question, "\n\n".join(f"{title}\n{''.join(text)}" for title, text in paragraphs)
    query = f"[qs]{question}[qe]"
    context = "".join(
        f"[ts]{title}[te]" + "".join(f"[ss]{sentence}" for sentence in sentences)
        for title, sentences in paragraphs
    )
    return (f"[cls]{query}" if form == "roberta" else query), context


def wikihop(
    form: str, question: str, candidates: Sequence[str], supports: Sequence[str]
) -> tuple[str, str]:
    """(query, context) of a question with its candidates, and the supporting texts."""
    if form in ("plain", "squad"):
        return f"{question}\n" + "\n".join(candidates), "\n\n".join(supports)
    context = "".join(f"[support]{text}" for text in supports)
    if form == "roberta":
        return choice_query(question, candidates), context
    return f"[question]{question}" + "".join(f"[candidate]{one}" for one in candidates), context


def wikihop_candidates(form: str, query: str) -> list[str]:
    """The candidates in a query of `wikihop`."""
    if form == "roberta":
        return query_choices(query)
    return query.split("\n" if form in ("plain", "squad") else "[candidate]")[1:]


# --- choices ----------------------------------------------------------------------------------


def choice_query(question: str, candidates: Sequence[str]) -> str:
    """The query of a multiple-choice head, which scores the hidden state at each [ent]."""
    entities = "".join(f"[ent]{one}[/ent]" for one in candidates)
    return f"[question]{question}[/question]{entities}"


def query_choices(query: str) -> list[str]:
    """The candidates in a query of `choice_query`."""
    return [one.removesuffix("[/ent]") for one in query.split("[ent]")[1:]]


def choice_target(row: Row) -> list[int]:
    """The index of a row's first reference among the candidates of its query."""
    candidates, answer = query_choices(row.query), row.references[0]
    if answer not in candidates:
        raise DataError(
            f"row {row.id}: answer '{answer}' is none of its {len(candidates)} candidates"
        )
    return [candidates.index(answer)]


def by_position(candidates: Callable[[str], Sequence[str]], rows: Sequence[Row]) -> list[Constant]:
    """For each position in the `candidates` of a query, up to the largest number of any row: the
    candidate at that position, or the last one in a row with fewer."""

    def at(position: int, row: Row) -> str:
        found = candidates(row.query)
        return found[min(position, len(found) - 1)]

    return [partial(at, i) for i in range(max(len(candidates(row.query)) for row in rows))]


# --- spans ------------------------------------------------------------------------------------


def span_target(row: Row, encoded: Encoded, tokenizer: Tokenizer, cut: str) -> list[int]:
    """The training target of a span head: see tasks.base.Task.target. The span is the answer's
    first occurrence in a supporting sentence, else its first occurrence anywhere (VCC always uses
    the latter); `cut` is the truncated side of the document."""
    tokenized = tokenizer(row.document, add_special_tokens=False, return_offsets_mapping=True)
    offsets = tokenized["offset_mapping"]
    query_size = len(tokenizer(row.query, add_special_tokens=False)["input_ids"])
    end = int(tokenizer.eos_token_id is not None)
    kept = len(encoded.ids) - query_size - end
    first = len(offsets) - kept if cut == "left" else 0
    visible = list(enumerate(offsets[first : first + kept], query_size))

    answer = row.references[0]
    kind = KINDS.index(answer.lower()) if answer.lower() in KINDS else len(KINDS)
    parts = _parts(row.document)
    ends = [UNKNOWN, UNKNOWN]
    if kind == len(KINDS):
        # False sorts before True: supporting parts come first.
        order = sorted(parts, key=lambda part: part[:2] not in row.support)
        places = (_find(answer, row.document, a, b) for _, _, a, b in order)
        begin, stop = next(filter(None, places), (0, 0))
        n_tokens = sum(a < stop and b > begin for a, b in offsets)
        covered = [at for at, (a, b) in visible if a < stop and b > begin]
        if covered and len(covered) == n_tokens:
            ends = [covered[0], covered[-1]]

    needed = {}
    titles = {title for title, _ in row.support}
    for title, number, a, _ in parts if row.support else ():
        needed[a] = int(title in titles if number < 0 else (title, number) in row.support)
    labels = [UNKNOWN] * len(encoded.ids)
    for at, (a, b) in visible:
        # A marker ends where its part begins.
        if row.document.startswith("[", a) and b in needed:
            labels[at] = needed[b]
    return [kind, *ends, *labels]


def _parts(document: str) -> list[tuple[str, int, int, int]]:
    """(title, number, begin, end) of each title (number -1) and sentence of a marked context."""
    markers = [*re.finditer(r"\[(ts|ss)\]", document)]
    stops = [*(marker.start() for marker in markers[1:]), len(document)]
    parts, title, number = [], "", -1
    for marker, stop in zip(markers, stops, strict=True):
        if marker[1] == "ts":
            title, number = document[marker.end() : stop].split("[te]")[0], -1
            stop = marker.end() + len(title)
        else:
            number += 1
        parts.append((title, number, marker.end(), stop))
    return parts


def _find(answer: str, document: str, begin: int, end: int) -> tuple[int, int] | None:
    """The answer's first occurrence in document[begin:end], preferably as whole words."""
    match = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)").search(document, begin, end)
    if match:
        return match.span()
    at = document.find(answer, begin, end) if answer else -1
    return (at, at + len(answer)) if at >= 0 else None
