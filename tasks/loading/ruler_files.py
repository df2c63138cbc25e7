"""The texts of RULER's generator: Paul Graham's essays, SQuAD and HotpotQA, from the files that the
scripts in scripts/data/synthetic/json download. They are read as by niah.py and qa.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.base import DataError
from tasks.loading import json_text, records, sources

SENTENCE_END = re.compile(r"""(?<=[.?!]) (?=["'(]?[A-Z0-9])""")


@dataclass(frozen=True)
class Asked:
    """A question on documents, which are given by number. The `gold` documents have the answer;
    `near` ones, from the same article, come first among the others."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Texts:
    """The contents of a file: the sentences of the essays in order, or distinct documents and
    questions on them."""

    texts: tuple[str, ...]
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of file with texts: its names, its description, the reader of its JSON, and whether it
    has questions."""

    names: tuple[str, ...]
    about: str
    read: Callable[[Any, str], Texts]
    asks: bool = True

    def find(self, folder: Path | None, benchmark: str) -> Path | None:
        """The file in a local folder; None if there is none."""
        try:
            found = sources.local_files(folder, benchmark, [f"**/{name}" for name in self.names])
        except DataError:
            return None
        return found[0]

    def load(self, path: Path) -> Texts:
        """Raises DataError for a file that isn't of this kind."""
        try:
            found = self.read(json_text.value(path.read_bytes(), str(path)), str(path))
        except (ValueError, RecursionError, OSError) as error:
            what = "" if isinstance(error, DataError) else f"{path}: broken json: "
            line = f"{what}{sources.first_line(error)}; accepted: {self.about}"
            raise DataError(line) from None
        if not found.texts or (self.asks and not found.asked):
            lacks = "questions with an answer" if found.texts else "texts"
            raise DataError(f"{path} has no {lacks}; accepted: {self.about}")
        return found


def _essays(content: Any, where: str) -> Texts:
    """niah.py collapses white space and finds sentences with nltk; here one ends at a full stop, ?
    or ! before a capital or digit."""
    text = re.sub(r"\s+", " ", records.text(_object(content, where), "text", where)).strip()
    return Texts(tuple(filter(None, SENTENCE_END.split(text))))


def _squad(content: Any, where: str) -> Texts:
    """The answerable questions, each with its paragraph and the other paragraphs of the article."""
    found: list[tuple[str, list[str], list[str], list[str]]] = []
    paragraphs: list[str] = []
    for article, at in _each(_object(content, where), "data", where):
        listed = list(_each(article, "paragraphs", at))
        texts = [records.text(paragraph, "context", place) for paragraph, place in listed]
        paragraphs += texts
        for (paragraph, place), text in zip(listed, texts, strict=True):
            for asked, here in _each(paragraph, "qas", place):
                if not records.column(asked, "is_impossible", here):
                    answers = [
                        records.text(*answer[:1], "text", answer[1])
                        for answer in _each(asked, "answers", here)
                    ]
                    question = records.text(asked, "question", here)
                    found.append((question, answers, [text], texts))
    return _numbered(paragraphs, found)


def _hotpotqa(content: Any, where: str) -> Texts:
    """Each question with its ten paragraphs."""
    found: list[tuple[str, list[str], list[str], list[str]]] = []
    for asked, here in _each({"": content}, "", where):
        try:
            texts = [f"{title}\n{''.join(text)}" for title, text in asked["context"]]
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{here}: column 'context' is no list of title, sentences") from None
        question, answer = (records.text(asked, name, here) for name in ("question", "answer"))
        found.append((question, [answer], texts, []))
    return _numbered((text for _, _, texts, _ in found for text in texts), found)


def _numbered(
    documents: Iterable[str], found: Iterable[tuple[str, list[str], list[str], list[str]]]
) -> Texts:
    """Distinct documents in order, and (question, answers, gold, near) with their numbers."""
    texts = tuple(sorted(set(documents)))
    number = {text: i for i, text in enumerate(texts)}

    def numbers(of: list[str]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number[text] for text in of))

    return Texts(
        texts,
        tuple(
            Asked(
                question,
                tuple(dict.fromkeys(answers)),
                numbers(gold),
                numbers([text for text in near if text not in gold]),
            )
            for question, answers, gold, near in found
        ),
    )


def _object(content: Any, where: str) -> records.Record:
    if not isinstance(content, dict):
        raise DataError(f"{where}: found {type(content).__name__}, expected an object")
    return content


def _each(content: Any, name: str, where: str) -> Iterator[tuple[records.Record, str]]:
    """The objects of a list in a column, each with its location."""
    listed = records.column(content, name, where)
    if not isinstance(listed, list):
        raise DataError(f"{where}: found {type(listed).__name__}, expected a list {name}".rstrip())
    for number, one in enumerate(listed, start=1):
        here = f"{where} {name or 'entry'} {number}"
        yield _object(one, here), here


ESSAYS = Kind(
    ("PaulGrahamEssays.json",), 'PaulGrahamEssays.json of its scripts: {"text": …}', _essays, False
)
SQUAD = Kind(("squad.json", "dev-v2.0.json"), "SQuAD's dev-v2.0.json", _squad)
HOTPOTQA = Kind(
    ("hotpotqa.json", "hotpot_dev_distractor_v1.json"), "hotpot_dev_distractor_v1.json", _hotpotqa
)
