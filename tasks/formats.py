"""VCC's inputs (Zeng et al., 2023, arXiv:2305.04241, appendix; src/roberta and src/t5 of its code).

Markers in square brackets stand between the parts of an input, and are added to the tokenizer as
tokens of their own: `SPECIAL` lists them by form. The first text of each pair is the query, whose
tokens are VIP.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def choices(question: str, candidates: Sequence[str]) -> str:
    """The query that a multiple-choice head reads: it scores the hidden state at each [ent]."""
    marked = "".join(f"[ent]{one}[/ent]" for one in candidates)
    return f"[question]{question}[/question]{marked}"


def chosen(query: str, number: str) -> str:
    """The text of one of the candidates in a query of `choices`."""
    return query.split("[ent]")[int(number) + 1].removesuffix("[/ent]")
