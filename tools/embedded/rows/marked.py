"""Training rows of the encoder with a span and a choice head: questions about paragraphs and
stories of the training split, in the forms of HotpotQA and QuALITY.

`looks` contain the attention that finds the answer: a question's word fetches the neighbour of the
same word in the text (once, or twice for two hops), and each choice is compared with the fetched
word.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tasks.generators import linked_paragraphs
from tasks.generators.seeds import stream
from tasks.generators.stories import VERSION, compose_with_sources
from tasks.loading import formats

SPAN = 2
FETCH, HOP, COMPARE = 1, 2, 3  # the layers whose attention is guided
# Heads that compare: named, because otherwise some heads would always look and others never would.
OPTION_HEADS, PLACE_HEADS = (3, 5), (5, 6)

# The words that a question about a story names, in the order of its sources; the last is looked up.
ASKED = (
    re.compile(r"Where (?:is|was) the (.+) at (?:the end|first)\?"),
    re.compile(r"Who gave the (.+) to .+\?"),
    re.compile(r"What did .+ give to (.+)\?"),
    re.compile(r"Where are the (.+) and the (.+) at the end\?"),
)


class Look(NamedTuple):
    """A layer that should attend from one character of a row to another, where query and document
    are one text: with any of its heads, or with each in the range `heads`."""

    layer: int
    start: int
    end: int
    heads: tuple[int, int] = (0, 0)


class Marked(NamedTuple):
    """A row for a head. `kind` is 0 no, 1 yes, 2 a span, or -1 for a row of choices, whose right
    one is `right`. `spans` are the first and last character of each right answer, in query and
    document as one text."""

    query: str
    document: str
    kind: int
    right: int
    spans: tuple[tuple[int, int], ...]
    looks: tuple[Look, ...]


def paragraphs(index: int, seed: int, tokens: int, facts: int, questions: int = 1) -> Marked:
    """A row of HotpotQA's form (tasks.generators.linked_paragraphs). Several questions in a row,
    which occur only in training, all ask for a place; a single one may ask for yes or no."""
    rng = stream("marked paragraphs", seed, index, tokens, facts, questions)
    compares = questions == 1 and index % 2 == 1
    told, texts = linked_paragraphs.linked_facts(
        rng, "train", tokens, facts, neighbours=compares and index % 4 == 1
    )
    if compares:
        (_, one, home), (_, other, elsewhere) = told[:2]
        asked, kind = [linked_paragraphs.SAME.format(one, other)], int(home == elsewhere)
    else:
        told = told[:questions]
        asked, kind = [linked_paragraphs.WHERE.format(thing) for thing, _, _ in told], SPAN
    query, document = formats.hotpotqa("roberta", "[qe][qs]".join(asked), texts)
    text = query + document
    looks: list[Look] = []
    spans = []
    if compares:
        ends = []
        for name, place in ((one, home), (other, elsewhere)):
            ends.append(query.index(name, query.index("Do ") + 3) + len(name) - 1)
            looks += _both(
                FETCH, ends[-1], _span(text, linked_paragraphs.LIVES.format(name, place), place)
            )
        looks += [
            Look(HOP, ends[1], ends[0], PLACE_HEADS),
            Look(COMPARE, 0, ends[1]),
        ]
    for thing, owner, home in () if compares else told:
        noun = query.index(f"the {thing} ") + len(f"the {thing}") - 1
        looks += _both(FETCH, noun, _span(text, linked_paragraphs.OWNS.format(thing, owner), owner))
        spans.append(_span(text, linked_paragraphs.LIVES.format(owner, home), home))
        looks += _both(HOP, noun, spans[-1])
        looks += [Look(HOP, at, noun) for at in spans[-1]]
    return Marked(query, document, kind, -1, tuple(spans), tuple(looks))


def comparisons(index: int, seed: int, tokens: int, facts: int) -> Marked:
    """The rows of `paragraphs` that ask for yes or no."""
    return paragraphs(2 * index + 1, seed, tokens, facts)


def choices(index: int, seed: int, tokens: int, facts: int) -> Marked:
    """A row of QuALITY's form: a question about a story, and four options."""
    rng = stream("marked story", VERSION, seed, index, tokens, facts)
    told, sources = compose_with_sources(rng, "train", tokens, facts, 1)
    question = told.questions[0]
    right = question.options.index(question.answers[0])
    query = formats.choice_query(question.text, question.options)
    found = next(match for form in ASKED if (match := form.fullmatch(question.text)))
    looks: list[Look] = []
    for group, (part, sentence) in enumerate(sources[0], 1):
        key = len("[question]") + found.end(group) - 1
        begin = len(query) + told.text.index(sentence) + sentence.rindex(part)
        looks += _both(FETCH, key, (begin, begin + len(part) - 1))
        looks += _compared(query, part, right, key)
    return Marked(query, told.text, -1, right, (), tuple(looks))


def vocabulary() -> tuple[list[str], list[str], list[str]]:
    """As tasks.generators.stories.vocabulary, with the words of
    tasks.generators.linked_paragraphs."""
    from tasks.generators import stories

    words, first, second = stories.vocabulary()
    texts = (
        linked_paragraphs.OWNS,
        linked_paragraphs.LIVES,
        linked_paragraphs.WHERE,
        linked_paragraphs.SAME,
        "yes no",
    )
    more = set(re.findall(r"\w+", " ".join(texts).replace("{}", " ")))
    return sorted({*words, *more, linked_paragraphs.RELATION}), first, second


def _span(text: str, sentence: str, part: str) -> tuple[int, int]:
    """First and last character of the last `part` of a sentence of the text."""
    begin = text.index(sentence) + sentence.rindex(part)
    return begin, begin + len(part) - 1


def _compared(query: str, part: str, right: int, key: int) -> list[Look]:
    """The ends of the right option, or of a part of it, attend to the question's word that has
    fetched an answer, the ends of other options to the row's first token, and each [ent] to the
    ends of its option."""
    looks = []
    for number, text in enumerate(query.split("[ent]")[1:]):
        start = query.index(f"[ent]{text}")
        said = part if number == right else text.removesuffix("[/ent]").removeprefix("the ")
        first = start + len("[ent]") + text.index(said)
        last = first + len(said) - 1
        looks += _both(COMPARE, start, (first, last))
        if number == right:
            looks += [Look(HOP, place, key, OPTION_HEADS) for place in (first, last)]
            continue
        # A beginning or ending that two answers share would get contradictory targets.
        looks += [Look(HOP, first, 0, OPTION_HEADS)] if said[:3] != part[:3] else []
        looks += [Look(HOP, last, 0, OPTION_HEADS)] if said[-2:] != part[-2:] else []
    return looks


def _both(layer: int, start: int, span: tuple[int, int]) -> list[Look]:
    return [Look(layer, start, end) for end in span]
