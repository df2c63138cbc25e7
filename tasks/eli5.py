"""ELI5 (Fan et al., 2019, arXiv:1907.09190): long answers to questions, as far as still available.

The original data set can't be rebuilt: the archive of its answers is closed, and its support
documents came from Common Crawl. Available are KILT's version (Petroni et al., 2021,
arXiv:2009.02252) and eli5_category, both without documents (closed book). A `document` in a record,
as the original pipeline writes it, is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.base import DataError, Row, Unanswerable
from tasks.loading import records
from tasks.loading.reader import Reader

LAYOUTS = ("kilt", "category")


@dataclass(frozen=True)
class Eli5(Reader):
    """Questions with paragraph-long answers; several answers are several references.

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
        row_id = records.text(record, id_column, where)
        query = records.text(record, query_column, where).strip()
        if self.layout == "category" and (
            details := records.optional_text(record, "selftext", where).strip()
        ):
            query = f"{query}\n{details}"
        if not query:
            raise DataError(f"{where}: column '{query_column}' has no question")
        answers = tuple(answer for answer in self._answers(record, where) if answer.strip())
        if not answers:
            column = "output" if self.layout == "kilt" else "answers"
            raise Unanswerable(f"{where}: column '{column}' has no answer")
        return Row(row_id, query, records.optional_text(record, "document", where), answers)

    def _answers(self, record: dict[str, Any], where: str) -> Iterator[str]:
        if self.layout == "category":
            answers = record.get("answers")
            if not isinstance(answers, dict) or not isinstance(answers.get("text"), list):
                raise DataError(f"{where}: no column 'answers' with a list 'text'")
            yield from (text for text in answers["text"] if isinstance(text, str))
            return
        outputs = record.get("output")
        if outputs is None:
            return
        if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
            raise DataError(f"{where}: column 'output' holds no list of objects with 'answer'")
        # Entries without an answer contain only the provenance of one.
        yield from (one["answer"] for one in outputs if isinstance(one.get("answer"), str))

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        """A story as the support document, and two references of two sentences each."""

        def build(story: Any) -> dict[str, Any]:
            question = story.questions[index % len(story.questions)]
            fact = story.summary.split(". ")[0].rstrip(".")
            answers = [
                f"The answer is {question.answers[0]}. {fact}.",
                f"{fact}. It is {question.answers[0]}.",
            ]
            record: dict[str, Any]
            if self.layout == "kilt":
                record = {"input": question.text, "output": [{"answer": text} for text in answers]}
            else:
                record = {"q_id": "", "title": question.text, "answers": {"text": answers}}
            return record | {"document": story.text}

        return [self.fit_story(split, index, length, seed, 18, build, self.count_tokens)]
