"""ELI5 (Fan et al., 2019, arXiv:1907.09190): long answers to questions, from what is left of it.

The original set can't be built any more: its answers came from an archive that is closed, its
support documents from Common Crawl. What can be had are KILT's version (Petroni et al., 2021,
arXiv:2009.02252) and eli5_category, both without documents: closed book. Where a record has a
`document`, as the original pipeline writes it, it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks import sources
from tasks.base import DataError, Row
from tasks.rows import Reader

LAYOUTS = ("kilt", "category")


@dataclass(frozen=True)
class Eli5(Reader):
    """Questions with answers of a paragraph; several answers are several references.

    layout  kilt: {id, input, output: [{answer}, …]}; category: {q_id, title, selftext,
            answers: {text: […]}}
    """

    layout: str = "kilt"
    embedded: str = "answer"

    kinds: ClassVar = ("answer",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("layout", LAYOUTS)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        id_column, query_column = ("id", "input") if self.layout == "kilt" else ("q_id", "title")
        row_id = sources.text(record, id_column, where)
        query = sources.text(record, query_column, where).strip()
        if self.layout == "category" and (more := (record.get("selftext") or "").strip()):
            query = f"{query}\n{more}"
        if not query:
            raise DataError(f"{where}: column '{query_column}' has no question")
        answers = tuple(one for one in self._answers(record, where) if one.strip())
        if not answers:
            column = "output" if self.layout == "kilt" else "answers"
            why = "; the benchmark withholds those of its test split" if split == "test" else ""
            raise DataError(f"{where}: column '{column}' has no answer{why}")
        return Row(row_id, query, record.get("document") or "", answers)

    def _answers(self, record: dict[str, Any], where: str) -> Iterator[str]:
        if self.layout == "category":
            held = record.get("answers")
            if not isinstance(held, dict) or not isinstance(held.get("text"), list):
                raise DataError(f"{where}: no column 'answers' with a list 'text'")
            yield from (one for one in held["text"] if isinstance(one, str))
            return
        outputs = record.get("output")
        if outputs is None:
            return
        if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
            raise DataError(f"{where}: column 'output' holds no list of objects with 'answer'")
        # Entries without an answer name only where one could be found.
        yield from (one["answer"] for one in outputs if isinstance(one.get("answer"), str))

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        """A story as the support document, and an answer in two sentences; two references."""

        def build(story: Any) -> dict[str, Any]:
            question = story.questions[index % len(story.questions)]
            told = story.summary.split(". ")[0].rstrip(".")
            answers = [
                f"The answer is {question.answers[0]}. {told}.",
                f"{told}. It is {question.answers[0]}.",
            ]
            if self.layout == "kilt":
                found = {"input": question.text, "output": [{"answer": one} for one in answers]}
            else:
                found = {"q_id": "", "title": question.text, "answers": {"text": answers}}
            return found | {"document": story.text}

        return [self.fitted(split, index, length, seed, 18, build, self.count)]
