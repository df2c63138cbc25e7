"""What the embedded models are trained on: questions about stories of the training split."""

from __future__ import annotations

from typing import NamedTuple

from tasks.seeds import stream
from tasks.stories import VERSION, compose_with_sources, story

QUERY_TOKENS = 24  # the longest question, and the end of the sequence


class Copy(NamedTuple):
    """Words of an answer that stand in the story. All figures count characters."""

    answer: int  # where the words begin in the answer
    length: int
    question: int  # where the question they answer ends; 0: none was asked
    document: int  # where they begin in the story


class Pair(NamedTuple):
    """What a model is trained on: text in, text out, and which of it is copied from where."""

    query: str
    document: str
    answer: str
    copies: tuple[Copy, ...]


def training_pair(index: int, seed: int, tokens: int, facts: int, questions: int) -> Pair:
    """Questions, a story of `tokens` tokens and the answers, of the training split. Several
    questions end with their numbers, and their answers begin with them."""
    rng = stream("pair", VERSION, seed, index, tokens, facts, questions)
    told, sources = compose_with_sources(rng, "train", tokens, facts, questions)
    asked = zip(told.questions, sources, strict=True)
    query = answer = ""
    copies = []
    for number, (question, found) in enumerate(asked, 1):
        mark = "" if questions == 1 else f" {number}"
        query += f" {question.text[:-1]}{mark}?"
        answer += f"{mark} "
        start = len(answer)
        answer += question.answers[0]
        for part, sentence in found:
            start = answer.index(part, start)
            at = told.text.index(sentence) + sentence.rindex(part)
            copies.append(Copy(start - 1, len(part), len(query) - 1 - bool(mark), at))
            start += len(part)
    return Pair(query[1:], told.text, answer[1:], tuple(copies))


def held_out(index: int, tokens: int, questions: int = 8) -> list[tuple[str, str, tuple[str, ...]]]:
    """Rows (question, story, right answers) of one validation story, `tokens` tokens at most."""
    told = story("validation", index, tokens - QUERY_TOKENS)
    return [(question.text, told.text, question.answers) for question in told.questions[:questions]]
