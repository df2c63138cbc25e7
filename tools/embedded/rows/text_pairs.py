"""Training pairs of the encoder-decoders, from the training split: questions about a story with
their answers, and texts with their summaries."""

from __future__ import annotations

from typing import NamedTuple

from tasks.generators import gist
from tasks.generators.seeds import stream
from tasks.generators.stories import VERSION, compose_with_sources


class Copy(NamedTuple):
    """Words of an answer that are in the document. All numbers count characters."""

    answer: int  # start of the words in the answer
    length: int
    question: int  # end of the question that they answer; 0: there is none
    document: int  # start of the words in the document


class Pair(NamedTuple):
    """Input text, output text, and the copied words of the output with their sources."""

    query: str
    document: str
    answer: str
    copies: tuple[Copy, ...]


def story_pair(index: int, seed: int, tokens: int, facts: int, questions: int) -> Pair:
    """Questions, a story of `tokens` tokens, and the answers. Several questions end with their
    numbers, and their answers begin with them."""
    rng = stream("pair", VERSION, seed, index, tokens, facts, questions)
    story, sources = compose_with_sources(rng, "train", tokens, facts, questions)
    query = answer = ""
    copies = []
    for number, (question, parts) in enumerate(zip(story.questions, sources, strict=True), 1):
        label = "" if questions == 1 else f" {number}"
        query += f" {question.text[:-1]}{label}?"
        answer += f"{label} "
        start = len(answer)
        answer += question.answers[0]
        for part, sentence in parts:
            start = answer.index(part, start)
            source = story.text.index(sentence) + sentence.rindex(part)
            copies.append(Copy(start - 1, len(part), len(query) - 1 - bool(label), source))
            start += len(part)
    return Pair(query[1:], story.text, answer[1:], tuple(copies))


def gist_pair(index: int, seed: int, tokens: int, questions: int = 1) -> Pair:
    """A text of `tokens` tokens and its summary. No question is asked."""
    text = gist.gist("train", index, tokens, seed + 1)
    copies = (Copy(at.summary, at.length, 0, at.text) for at in text.sources)
    return Pair(gist.QUERY, text.text, text.summary, tuple(copies))
